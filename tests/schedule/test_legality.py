"""Bad schedule files: one line with the place and the reason."""

import numpy as np
import pytest

from gangsaw.errors import InputError
from gangsaw.schedule import generate, parse_csv, read_schedule, to_csv
from gangsaw.schedule.lower import with_gathers, with_reduction

GOOD = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("0F0,0B0\n1F0,1B0,1F0\n", "line 2 action 3: 1F0 stands twice"),
        (GOOD.replace("0F1", "0F0"), "0F0 stands twice"),
        (GOOD.replace(",1B1", ""), "line 2: stage 1 microbatch 1: neither B nor I and W"),
        (GOOD.replace("1F1,", ""), "stage 1 microbatch 1: F is missing"),
        ("0F0,0B0\n2F0,2B0\n", "stage 1 has no action"),
        ("0F0,0B0,1F0\n1B0\n", "stage 1 is also on line"),
        ("0B0,0F0\n", "0B0 stands before its F"),
        ("0F0,0W0,0I0\n", "0W0 stands before its I"),
        ("0F0,0I0\n", "I and W belong together"),
        ("0F0,0B0,0I0,0W0\n", "both B and I"),
        ("0F0,0B0x\n", "line 1 cell 2: '0B0x' is not"),
        ("0F,0B0\n", "F needs a microbatch"),
        ("0F0,0B0,0RESHARD1\n", "RESHARD takes no microbatch"),
        ("(0F0;0F1)OVERLAP_F_B,0B0,0B1\n", "must pair one F with one B"),
        ("(0F0;0B0)OVERLAP_F_B\n", "overlaps its own backward"),
        ("(0F0)OVERLAP_F_B\n", "is not (<action>;<action>)"),
        ("0F0,0B0,99999F0\n", "are named"),
        ("0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0\n", "1SEND_B0 stands 0 times, 1 needed"),
    ],
)
def test_one_line_with_the_reason(text, says):
    with pytest.raises(InputError) as caught:
        parse_csv(text, "plan.csv")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_deadlock_names_the_circle():
    # Rank 0 wants the gradient of microbatch 0 before it sends microbatch 1, rank 1 the reverse.
    text = "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n"
    with pytest.raises(InputError) as caught:
        parse_csv(text)
    said = str(caught.value)
    assert "deadlock" in said
    assert "rank 0 (line 1 action 2, 0B0) waits for 1B0 of rank 1" in said
    assert "rank 1 (line 2 action 2, 1F1) waits for 0F1 of rank 0" in said


def test_garbage(tmp_path):
    path = tmp_path / "garbage.csv"
    path.write_bytes(np.random.default_rng(0).bytes(1_000_000))
    with pytest.raises(InputError, match="not UTF-8"):
        read_schedule(path)
    path.write_text("x" * 1_000_000)
    with pytest.raises(InputError) as caught:
        read_schedule(path)
    assert len(str(caught.value)) < 400
    with pytest.raises(InputError, match="cannot be read"):
        read_schedule(tmp_path / "none.csv")


def test_names_and_numbers(tmp_path):
    for alias, name in (("VPP", "interleaved"), ("ZBVZeroBubble", "zb-v"), ("LoopedBFS", "bfs")):
        assert generate(alias, 2, 4, 2).name == name
    for wrong, says in (
        (("zb-1p", 4, 8, 1), "auto"), (("nope", 4, 8, 1), "Legal: gpipe"),
        (("dualpipe", 3, 12, 1), "even number of ranks"), (("1f1b", 4, 8, 2), "one chunk"),
        (("dualpipe-v", 4, 7, 2), "at least 2 pp = 8"), (("1f1b", 0, 8, 1), "pp=0"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=says):
            generate(*wrong)
    path = tmp_path / "own.csv"
    path.write_text(GOOD)
    assert generate(f"file:{path}", 2, 2).actions == 8
    with pytest.raises(InputError, match="2 ranks and 2 microbatches"):
        generate(f"file:{path}", 4, 2)


def test_gathers_and_reductions_stay_legal():
    for name, v in (("interleaved", 4), ("bfs", 4), ("dualpipe-v", 2), ("1f1b", 1)):
        schedule = with_reduction(with_gathers(generate(name, 4, 9, v)))
        again = parse_csv(to_csv(schedule))
        assert np.array_equal(again.kind, schedule.kind)
        text = to_csv(schedule)
        assert text.count("REDUCE_GRAD") == 4 * v
        assert text.count("UNSHARD") == text.count("RESHARD")
        for line in text.splitlines():
            held = set()
            for cell in line.split(","):
                if cell.endswith("UNSHARD"):
                    held.add(cell.removesuffix("UNSHARD"))
                    assert len(held) <= 3
                elif cell.endswith("RESHARD"):
                    held.remove(cell.removesuffix("RESHARD"))
                elif cell.startswith("("):
                    parts = cell[1:].split(")")[0].split(";")
                    assert all(part.replace("B", "F").split("F")[0] in held for part in parts)
                elif "F" in cell:
                    assert cell.split("F")[0] in held
            assert not held


def test_large_text_round_trip():
    schedule = generate("interleaved", 16, 256, 4)
    assert np.array_equal(parse_csv(to_csv(schedule)).kind, schedule.kind)
