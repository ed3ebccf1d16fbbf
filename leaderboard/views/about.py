"""What the numbers mean, how to add a regime and submit results."""

from __future__ import annotations

import streamlit as st

from leaderboard.data import Store
from leaderboard.page import AT, Page
from leaderboard.texts import read_citation

_NUMBERS = """
- **Accuracy**: share of right answers on held-out questions. *greedy* takes one answer at temperature 0; *avg@k* is
  the mean over k samples, at temperature 1 among all tokens unless the suite's `evaluation` says otherwise. An answer
  that the verifier could not decide is left out of the accuracy and counted separately.
- **Gain**: accuracy minus that of the *baseline at the same rollout budget* (each policy alone, as many rollouts), on
  the same group and seed. A gain from more data is not a gain from sharing, so a regime with twice the rollouts is
  compared with a baseline of twice the rollouts.
- **95 % interval**: Student t over seeds, n − 1 degrees of freedom. It is about other seeds on the same questions
  and base checkpoints (other ones where each seed has its own).
- **Paired**: a seed fixes prompts and sampling noise for every regime, so differences are taken seed by seed.
- **Gains, loses**: the paired t test against the baseline is significant at 5 % after Holm's correction over all that
  is compared of one policy (or of the mean of policies) and one metric: every regime on every group and benchmark, on their
  mean, and whether groups differ. The corrected interval leaves out 0 exactly then. **No effect larger than the margin**:
  the 95 % interval of the gain, which is not corrected, lies within the margin on either side of 0 (2 points unless you
  choose another), and groups are not seen to differ. **Differs between groups**: one mean would hide that groups gain and
  lose unlike each other. **Cannot tell**: none of these. **Withheld**: every answer was wrong, or every one right, or the
  baseline learnt nothing, so nothing can be said. The sentence on top says how large a gain these seeds would have shown
  (80 % power, after the same correction). Not corrected: the choice among policies and metrics, and the best of several
  suites.
- **Tie group**: letters; regimes that share one cannot be told apart, those that share none can. These are the same
  tests: a regime gains or loses exactly where it shares no letter with its baseline, unless groups differ.
- **Small spreads of few seeds**: sampling of answers alone gives a variance over seeds. A measured variance below the 7 %
  quantile of that distribution is replaced by the quantile, so three equal seeds do not give an interval of width 0.
- **IQM**: the mean of the middle half of all runs on all groups and benchmarks. **Better than baseline**: how often a
  run beats one of the baseline (ties half). Both describe; whether a difference is real is for the tests to say.
- **Peers' answers used**: share of the other policies' answers that gave a nonzero gradient. What a regime does not send,
  or refuses, is not used; an answer that arrives several times counts once. A regime whose window lets nothing through is
  the baseline under another name.
- **Stability and support**: *support* is what peers add that the policy never samples itself; *stability* is how
  noisy the updates become.
- **Costs**: rollouts, tokens and CPU- or GPU-seconds per seed, repeated work after interruptions included in the
  seconds.
"""
_REGIME = """
A regime is one short module that says what is shared and how it enters the loss. This writes a package with its
conformance test and installs it (docs/regimes.md):
"""
_CITE = """
Cite the harness, and the papers whose regimes you ran: a regime's page names its paper.
"""
_WEIGHTS = """
A finished cell has its trained policies as folders of Hugging Face transformers, `{results}/SUITE/CELL/checkpoint/POLICY/`,
where the suite keeps them (`keep`). Reference results come without weights. In Python, and with vLLM:
"""
_OPENED = (
    'AutoModelForCausalLM.from_pretrained("{results}/SUITE/CELL/checkpoint/POLICY")\n'
    "vllm serve {results}/SUITE/CELL/checkpoint/POLICY"
)
_DOCUMENTATION = """
The documentation is the folder `docs` of the repository, from `docs/index.md` on; `make docs` makes a site of it. What each regime
computes is on its own page here, and how gains, kappa and reach are estimated is in `docs/statistics.md`.
"""
_SUBMIT = """
For the shared table a finished suite is bundled in one file, which others check by training one random cell again
(`harness bundle SUITE`; docs/submit.md has the whole way). Between two of your own machines its folder will do
(`results/<suite>/`; checkpoints are not needed): every record is validated, and what is refused is listed with the reason.
Imported suites carry their origin in their name.
"""
_QUESTION = (
    'harness sql "SELECT regime, sum(peer_used), sum(peer_received) FROM steps JOIN cells '
    'USING (suite, cell) GROUP BY ALL"'
)


def draw(store: Store | None, suite: str) -> None:
    """Draw the page: what a reader does next comes first, what the numbers mean last."""
    at = st.session_state.get(AT, "")
    folder = results_folder(at)
    for anchor, head, text, commands in (
        (
            "add",
            "Add a regime",
            _REGIME,
            "harness new-regime my-regime\npip install -e 'my-regime[test]'\nharness regimes",
        ),
        ("cite", "Cite", _CITE, write_bibtex()),
        ("weights", "Trained weights", _WEIGHTS.format(results=folder), _OPENED.format(results=folder)),
        (
            "submit",
            "Submit or merge results",
            _SUBMIT,
            f"harness import their_results/{at}\nharness export --out report.html{at}",
        ),
        ("documentation", "Documentation", _DOCUMENTATION, ""),
        ("sql", "Ask the store yourself", "", _QUESTION + at),
        ("numbers", "What the numbers mean", _NUMBERS, ""),
    ):
        st.header(head, anchor=anchor)
        if text:
            st.markdown(text)
        if commands:
            st.code(commands, language=None, wrap_lines=True)


def results_folder(at: str) -> str:
    """Return the results folder as the reader would type it. at: the option `--results` of advised commands, or nothing."""
    return at.removeprefix(" --results ") or "results"


def write_bibtex() -> str:
    """Write the citation of CITATION.cff for a bibliography."""
    cited = read_citation()
    year = f"\n  year = {{{cited['year']}}}," if cited["year"] else ""
    return (
        f"@software{{experience_sharing_harness,\n  title = {{{cited['title']}}},\n  author = {cited['authors']},{year}\n"
        f"  version = {{{cited['version']}}},\n  license = {{{cited['licence']}}}\n}}"
    )


PAGE = Page("about", "About", ":material/info:", "", draw, order=90, needs_results=False, figures=False)
