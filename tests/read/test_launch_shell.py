"""The shell is followed as bash would expand it, and never run."""

import shutil
import subprocess

import pytest

from gangsaw.errors import InputError
from gangsaw.read.launch.shell import Script
from gangsaw.read.launch.shell_expand import UNKNOWN

SCRIPTS = {
    "defaults": 'A=${A_UNSET:-x}; B=${A:+y}; C=${A:-z}; show "$A" "$B" "$C"',
    "arithmetic": "N=4; G=8; show $((N*G)) $(( (N + 2) % 4 )) $((N>2)) $((100/3)) $((2**5))",
    "arrays": 'A=(1 "2 3" 4); A+=(5); show "${A[@]}" ; show ${A[*]} ; show ${#A[@]} ${A[1]}',
    "quotes": """X="a b"; show $X "$X" '$X' a"$X"b \\$X""",
    "continuation": "show a \\\n  b \\\n  c",
    "patterns": "P=/a/b/c.tar.gz; show ${P##*/} ${P%.gz} ${P%%.*} ${P#*/} ${P/b/x} ${#P} ${P:3:2}",
    "case_change": "N=Llama; show ${N,,} ${N^^} ${N^}",
    "if_test": 'X=7B; if [ "$X" == "7B" ]; then show small; elif [[ $X == 70B ]]; then show big; fi',
    "if_empty": 'if [ -z "$NOT_SET_HERE" ]; then V=8; fi; show $V',
    "and_or": '[[ 3 -gt 2 ]] && show yes; [[ 1 -gt 2 ]] || show no',
    "case": "M=13b; case $M in 7b) show 7 ;; 13b|14b) show 13 ;; *) show none ;; esac",
    "for_loop": "for n in 1 2 3; do A+=($((n*n))); done; show ${A[@]}",
    "function": 'f() { show "$1" "$2"; }; f 1 "2 3"',
    "heredoc": "cat <<EOF > /dev/null\nnot --a flag\nEOF\nshow after",
    "string_of_flags": 'F="--a 1 \\\n --b 2"; F="$F --c 3"; show $F',
    "nested_default": "B=4; show ${X_UNSET:-${Y_UNSET:-$B}}",
    "comment": "A=(1 # one\n 2 # two\n); show ${A[@]} # three",
    "eval": 'CMD="show a b"; eval $CMD',
    "bash_c": "X=5; export X; bash -c \"show $X 'y z'\"",
    "export_prefix": "export A=1 B=2; C=3 show $A $B",
    "append": "S=a; S+=b; show $S",
    "elif_else": 'N=3; if [ $N -eq 1 ]; then show 1; elif [ $N -eq 2 ]; then show 2; else show 3; fi',
}  # fmt: skip


def shown(text):
    script = Script("t.sh")
    script.read(text)
    return [list(c.argv[1:]) for c in script.commands if c.argv[0] == "show"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_expansion_is_that_of_bash(name, tmp_path):
    bash = shutil.which("bash")
    assert bash, "bash is part of every system that runs these tests"
    show = tmp_path / "show"
    show.write_text('#!/bin/bash\nprintf "%s\\x1f" "$@"; printf "\\x1e"\n')
    show.chmod(0o755)
    path = tmp_path / "t.sh"
    path.write_text(SCRIPTS[name])
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    out = subprocess.run([bash, str(path)], env=env, capture_output=True, text=True, check=False)
    wanted = [row.split("\x1f")[:-1] for row in out.stdout.split("\x1e")[:-1]]
    assert shown(SCRIPTS[name]) == wanted
    assert wanted


def test_a_commands_output_is_unknown_and_never_run(tmp_path):
    mark = tmp_path / "ran"
    rows = shown(f"X=$(touch {mark}; echo 8); Y=`touch {mark}`; show --tp $X --pp $Y --cp $((X+1))")
    assert not mark.exists()
    assert all(UNKNOWN in row for row in (rows[0][1], rows[0][3], rows[0][5]))


def test_what_the_file_does_not_decide_is_not_guessed():
    script = Script("t.sh")
    script.read("if [ -d /somewhere ]; then TP=4; fi\nwhile true; do TP=9; done\nshow $TP")
    assert UNKNOWN in script.commands[-1].argv[1]
    assert len(script.unread) == 2


BOMBS = {
    "doubling": "A=aaaaaaaaaa\n" + 'A="$A$A"\n' * 60,
    "loops": "for a in 1 2 3 4 5 6 7 8 9 10; do " * 12 + "x" + "; done" * 12,
    "calls": "f() { f; f; }; f",
    "eval": "A='eval $A'; eval $A",
    "nesting": "if true; then " * 200,
    "brackets": "(" * 3000,
    "params": "echo ${" * 400,
    "arith": "show $((" + "(" * 3000 + "1" + ")" * 3000 + "))",
    "quotes": '"' * 9999,
    "substitutions": "$(" * 5000,
    "stars": "P=" + "a" * 3000 + "; show ${P##" + "*a" * 90 + "b}",
    "heredocs": "cat <<A <<B <<C\n" * 300,
    "backslashes": "\\\n" * 50_000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_hostile_shell_ends(name):
    script = Script("t.sh")
    try:
        script.read(BOMBS[name])
    except InputError as error:
        assert "\n" not in str(error)
