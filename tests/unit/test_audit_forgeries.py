"""Forgeries that keep every digest and every copy that is left true, and honest studies that look like one."""

import planted_study
from audit_cases import RUN, broken, report_of, rewrite

BEYOND = "S-grape-m-L16-s0"


def forge(repository, change, run=BEYOND):
    """Change the rows of an evaluation, and make all that rests on it again."""
    study = repository / "results/nano"
    rewrite(study / "runs" / run / "evaluation.parquet", change)
    planted_study.score(study)
    return broken(report_of(repository))


def test_blocks_left_out_of_a_table_are_caught(repository):
    """Without the heads, which hold means over all blocks, every number that stands twice is still true."""

    def fewer(frame):
        return frame[(frame["block"] != 3) & (frame["quantity"] != "far_mass_head")]

    found = forge(repository, fewer)
    problem = f"{BEYOND}/evaluation.parquet: lacks 72 rows of its 8 blocks, first: variant plain, quantity loss"
    assert problem in found["whole tables"]
    assert "block 3, window 0, bin 0" in found["whole tables"]
    assert "has a far mass that is not the mean of its heads" in found["copies of a number"]


def test_rows_that_stand_twice_or_weigh_more_are_caught(repository):
    def heavier(frame):
        return frame.assign(count=frame["count"].where(frame["block"] != 3, 1))

    assert "lacks" in forge(repository, heavier)["whole tables"]

    def again(frame):
        return frame.iloc[[*range(len(frame)), 0]].assign(count=frame["count"].where(frame["count"] != 1, 16))

    assert "has besides what it should 1 rows" in forge(repository, again, "S-grape-m-L16-s1")["whole tables"]


def test_exponents_left_out_are_caught_by_the_log_of_training(repository):
    found = forge(repository, lambda frame: frame[frame["quantity"] != "exponent"], "S-log-L16-s0")
    assert "has other exponents than positions.parquet logged last" in found["copies of a number"]


def test_windows_left_out_of_an_intervention_are_caught(repository):
    study = repository / "results/nano"
    rewrite(study / "runs" / RUN / "cap.parquet", lambda frame: frame[frame["block"] != 0])
    planted_study.score(study)
    assert f"{RUN}/cap.parquet: lacks" in broken(report_of(repository))["whole tables"]
