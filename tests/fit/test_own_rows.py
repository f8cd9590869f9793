"""What own rows buy, on the shipped held-out rows."""

import pytest

from gangsaw.cost.doubt import load_widths
from gangsaw.fit.own_rows import COUNTS, accused_frac, lines_of, more_rows, wrong_rows
from gangsaw.fit.release import load_held_out


@pytest.fixture(scope="module")
def held_out():
    rows = load_held_out()
    return rows, dict.fromkeys({h.source for h in rows}, load_widths())


def test_more_rows_help_on_average_and_three_chosen_are_nearly_worth_five_at_random(held_out):
    found = more_rows(*held_out)
    assert len(found) >= 8
    mean = [sum(m.errors[i] for m in found) / len(found) for i in range(len(COUNTS))]
    assert mean[-1] < mean[2] < mean[0]
    at_random = sum(m.random for m in found) / len(found)
    assert mean[COUNTS.index(3)] < 1.1 * at_random
    # Hardly a set-up is made worse by its own rows.
    assert sum(m.errors[-1] > m.errors[0] for m in found) <= 2


def test_a_wrong_row_is_named_and_hardly_swallowed(held_out):
    found = {(w.own, w.factor): w for w in wrong_rows(*held_out)}
    assert found[10, 3.0].named_frac > 0.95
    assert found[3, 3.0].named_frac > 0.9
    assert found[10, 1.6].named_frac > 0.75
    assert found[10, 3.0].error_spoiled < found[10, 3.0].error_clean + 0.01
    # A step 30 % too long cannot be told from a slow plan with few rows.
    assert found[3, 1.3].named_frac < found[10, 1.3].named_frac
    assert accused_frac(*held_out) < 0.05


def test_the_section_has_a_row_for_each_set_up(held_out):
    text = "\n".join(lines_of(*held_out))
    for m in more_rows(*held_out):
        assert m.group.replace("|", ", ") in text
    assert text.count("| x 1.3 |") == 3
