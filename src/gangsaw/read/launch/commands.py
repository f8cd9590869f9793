"""Shell scripts: which command is the launch, and what its flags state."""

from __future__ import annotations

import re

from gangsaw.errors import InputError
from gangsaw.read.launch import detect
from gangsaw.read.launch.document import Framework, Setting, Settings, Value
from gangsaw.read.launch.scalars import flatten, key_lines, scalar
from gangsaw.read.launch.shell import Command, Script
from gangsaw.read.launch.shell_expand import UNKNOWN
from gangsaw.read.launch.world import pairs, slurm_headers, slurm_number
from gangsaw.read.launch.yaml import read_yaml
from gangsaw.read.toml import parse_json, parse_toml

_PROGRAM = re.compile(r"(\.py|/gangsaw|^gangsaw|^sft|^pt|^rlhf|^train)$")
_LAUNCH_FLAGS = {
    "nnodes": "nodes", "num_nodes": "nodes", "num_machines": "nodes", "nproc_per_node": "per_node",
    "num_gpus": "per_node", "gpus_per_node": "per_node", "num_processes": "world",
}  # fmt: skip
_NAME_VARS = re.compile(r"(MODEL|CHECKPOINT|TOKENIZER|HF_|LOAD|NAME)", re.IGNORECASE)


def settings_of_script(
    text: str, where: str, framework: Framework | None
) -> tuple[Settings, Framework | None]:
    """Settings of a shell script and the framework that it launches (None: none found)."""
    settings = Settings(where)
    script = Script(where)
    headers = slurm_headers(text, settings)
    _seed(script, headers)
    script.read(text)
    for line, what in script.unread:
        settings.skip(line, what)
    for name in sorted(script.scope.missing):
        if not name.isdigit() and name not in "@*#?$!-":
            settings.skip(0, f"${name} is not set in the file")
    for name in script.exported:
        held = script.scope.names.get(name) or [""]
        if UNKNOWN not in held[0]:
            settings.env[name] = Setting(name, held[0], script.exported[name])
            if _NAME_VARS.search(name):
                settings.names.append(held[0])
    _world(settings, headers)
    for name, key in (("NPROC_PER_NODE", "@per_node"), ("NNODES", "@nodes")):
        stated = settings.env.get(name)
        if stated is not None and key not in settings.items and str(stated.value).isdigit():
            settings.put(key, int(str(stated.value)[:8]), stated.line)
    chosen, guess = _launch(script.commands, framework)
    if chosen is None:
        return settings, ("slurm" if headers and guess is None else guess)
    if guess is not None:
        _flags(chosen, settings, guess)
    _places(text, settings)
    _wrapped(script.commands, chosen, settings)
    _heredocs(script.heredocs, settings)
    settings.names.append(where)
    return settings, guess


_FLAG = re.compile(r"(?<![\w-])(?:--|\+)?([A-Za-z_][\w.-]{1,120})(?==|[ \t\n\\])")


def _places(text: str, settings: Settings) -> None:
    """Set the line of each flag to where it is written, which may be an array far above."""
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        code = line[:2000]
        if code.lstrip().startswith("#"):
            continue
        for match in _FLAG.finditer(code + "\n"):
            if match.group(0).startswith("--") or "=" in code[match.end() : match.end() + 1]:
                lines.setdefault(match.group(1).replace("-", "_"), number)
                lines.setdefault(match.group(1), number)
    for key, item in list(settings.items.items()):
        if key in lines:
            settings.items[key] = item._replace(line=lines[key])


def command_of_pods(settings: Settings) -> tuple[Settings, Framework] | None:
    """Settings of the command that a Kubernetes manifest runs in its pods; None if it has none."""
    if "apiVersion" not in settings.items:
        return None
    for item in settings:
        if not item.key.endswith(("containers.0.command", "containers.0.args")):
            continue
        words = [str(word) for word in item.value] if isinstance(item.value, list) else []
        base = item.key.rsplit(".", 1)[0]
        more = settings.get(f"{base}.args")
        if item.key.endswith(".command") and isinstance(more, list):
            words += [str(word) for word in more]
        flags = [i for i, word in enumerate(words[:-1]) if re.fullmatch(r"-[a-z]*c", word)]
        if flags and words[0].rsplit("/", 1)[-1] in ("bash", "sh"):
            return _pod_script(words[flags[0] + 1], settings)
        guess = detect.of_command(tuple(words))
        if guess is None:
            continue
        inner = Settings(settings.where)
        _flags(Command(tuple(words), item.line), inner, guess)
        return inner, guess
    return None


def _pod_script(text: str, settings: Settings) -> tuple[Settings, Framework] | None:
    """A shell text that a pod runs; lines are counted in it."""
    inner, guess = settings_of_script(text, f"{settings.where} (script)", None)
    return None if guess is None else (inner, guess)


def _seed(script: Script, headers: dict[str, tuple[int, int]]) -> None:
    """Variables that Slurm sets inside a job."""
    nodes = headers.get("nodes", (0, 0))[0]
    per = headers.get("per_node", (0, 0))[0]
    tasks = headers.get("tasks", (0, 0))[0]
    values = {
        "SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes, "SLURM_GPUS_PER_NODE": per,
        "SLURM_GPUS_ON_NODE": per, "SLURM_NTASKS": tasks,
        "SLURM_NTASKS_PER_NODE": headers.get("tasks_per_node", (0, 0))[0],
    }  # fmt: skip
    for name, value in values.items():
        if value:
            script.scope.names[name] = [str(value)]


def _world(settings: Settings, headers: dict[str, tuple[int, int]]) -> None:
    for name in ("nodes", "per_node", "world", "tasks"):
        if name in headers:
            settings.put(f"@{name}", headers[name][0], headers[name][1])
    for name in ("nodes", "per_node"):
        if name in headers:
            settings.put(f"@slurm_{name}", headers[name][0], headers[name][1])
    nodes, per = headers.get("nodes"), headers.get("tasks_per_node")
    if nodes and per and per[0] > 1 and "per_node" not in headers:
        settings.put("@per_node", per[0], per[1])


def _launch(
    commands: list[Command], framework: Framework | None
) -> tuple[Command | None, Framework | None]:
    """The command with the most flags among those that launch a known framework."""
    best: tuple[int, Command, Framework] | None = None
    for command in commands:
        guess = framework or detect.of_command(command.argv)
        if guess is None:
            continue
        size = sum(1 for word in command.argv if word.startswith("--") or "=" in word)
        if best is None or size > best[0]:
            best = (size, command, guess)
    return (None, framework) if best is None else (best[1], best[2])


def _flags(command: Command, settings: Settings, framework: Framework) -> None:
    argv = list(command.argv)
    start = next((i for i, word in enumerate(argv) if _PROGRAM.search(word)), 0)
    if not start and "-m" in argv:
        start = min(argv.index("-m") + 1, len(argv) - 1)
    _head(argv[:start], command.line, settings)
    if framework == "verl":
        _hydra(argv[start + 1 :], command.line, settings)
        return
    index = start + 1 if start or argv[0].startswith("python") else 1
    places = 0
    while index < len(argv):
        word = argv[index]
        index += 1
        if not word.startswith("--"):
            if UNKNOWN not in word:
                settings.names.append(word)
                places += 1
                if framework == "gangsaw":
                    settings.put(f"argument{places}", word, command.line)
            continue
        key, sign, value = word[2:].partition("=")
        key = key.replace("-", "_")
        if not sign:
            values = []
            while index < len(argv) and not argv[index].startswith("--"):
                values.append(argv[index])
                index += 1
            held: Value = True if not values else _joined(values)
        else:
            held = scalar(value) if value else ""
        _put(settings, key, held, command.line)


def _joined(values: list[str]) -> Value:
    if len(values) == 1:
        return UNKNOWN if UNKNOWN in values[0] else scalar(values[0])
    return [None if UNKNOWN in item else scalar(item) for item in values]


def _put(settings: Settings, key: str, value: Value, line: int) -> None:
    if isinstance(value, str) and UNKNOWN in value:
        settings.skip(line, f"--{key}: the file does not state its value")
        return
    if isinstance(value, str) and any(w in key for w in ("model", "load", "tokenizer", "path")):
        settings.names.append(value)
    settings.put(key, value, line)


def _head(words: list[str], line: int, settings: Settings) -> None:
    """What torchrun, deepspeed, accelerate and srun say of nodes and devices."""
    srun, open_nodes = "srun" in words, False
    for key, value in pairs(words):
        name = _LAUNCH_FLAGS.get(key.replace("-", "_"))
        if name is None and srun:
            name = {"nodes": "nodes", "N": "nodes", "ntasks": "tasks", "n": "tasks"}.get(key)
        if name is None or not value:
            continue
        if UNKNOWN in value:
            settings.skip(line, f"--{key}: the file does not state its value")
            open_nodes = open_nodes or name == "nodes"
            continue
        number = slurm_number(value, key)
        if number:
            settings.put(f"@{name}", number, line)
    single = any(word.rsplit("/", 1)[-1] in ("torchrun", "deepspeed", "megatron") for word in words)
    if single and not open_nodes and "@nodes" not in settings.items:
        settings.put("@one_node", 1, line)


def _wrapped(commands: list[Command], chosen: Command, settings: Settings) -> None:
    """srun in front of the shell that holds the launch says how many nodes there are."""
    for command in commands:
        if command is not chosen and command.argv[0] == "srun":
            for key, value in pairs(list(command.argv)):
                number = slurm_number(value, key) if value else None
                if key in ("nodes", "N") and number and "@nodes" not in settings.items:
                    settings.put("@nodes", number, command.line)


def _hydra(words: list[str], line: int, settings: Settings) -> None:
    for word in words:
        if word.startswith("--") or "=" not in word:
            continue
        key, _, value = word.lstrip("+~").partition("=")
        if UNKNOWN in value:
            settings.skip(line, f"{key}: the file does not state its value")
            continue
        if "path" in key or "model" in key:
            settings.names.append(value)
        settings.put(key, scalar(value.strip("'\"")), line)


def _heredocs(bodies: list[tuple[int, str]], settings: Settings) -> None:
    """A DeepSpeed configuration written by the script itself."""
    for line, body in bodies:
        text = body.strip()
        inner = Settings(settings.where)
        if text.startswith("{") and UNKNOWN not in text and len(text) < 200_000:
            try:
                flatten(parse_json(text, f"{settings.where}:{line}"), inner, key_lines(text))
            except InputError as error:
                settings.skip(line, f"heredoc: {error}")
                continue
        elif re.match(r"^[\w.\-]+:\s", text) and UNKNOWN not in text and len(text) < 200_000:
            try:
                inner = read_yaml(text, f"{settings.where}:{line}")
            except InputError as error:
                settings.skip(line, f"heredoc: {error}")
                continue
        elif re.search(r"^tp = \d", text, re.MULTILINE) and len(text) < 200_000:
            try:
                flatten(parse_toml(text, f"{settings.where}:{line}"), inner, key_lines(text))
            except InputError as error:
                settings.skip(line, f"heredoc: {error}")
                continue
            for item in inner:
                settings.put(item.key, item.value, item.line + line - 1)
            continue
        else:
            settings.skip(line, "heredoc")
            continue
        settings.add_deepspeed(inner, line - 1)
