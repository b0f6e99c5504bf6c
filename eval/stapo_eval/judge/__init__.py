"""The judge: a verifier model that is asked about answers which the rule may have got wrong.

`prompt` is what it sees and how its reply is read, `asking` the asking itself, on record as replies come; `audit` says
what its word does to a score and how much of every score is the judge's; `rejudge` judges a run folder afterwards.
"""

from stapo_eval.judge.prompt import MODES
from stapo_results.errors import BadInput

SCOPES = ("rule-negatives", "all")


def check_judge(scope: str, mode: str) -> None:
    """Raises BadInput for a scope or mode that does not exist, or a mode that lets another scope be asked for."""
    if scope not in SCOPES:
        raise BadInput("this judge scope does not exist", found=scope, expected=", ".join(SCOPES))
    if mode not in MODES:
        raise BadInput("this judge mode does not exist", found=mode, expected=", ".join(MODES))
    if mode == "justrl-exact" and scope != "rule-negatives":
        raise BadInput(
            "JustRL asks its judge only where the rule fails",
            found=f"--judge-scope {scope}",
            expected="rule-negatives",
            next_step="leave out --judge-scope, or use --judge-mode compass",
        )
