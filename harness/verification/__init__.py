"""What judges: whether an answer says what the gold says.

Reading an answer out of a response: `response`, with `numerals`, `notation`, `statement`. Mathematical equality: `equivalence`,
first by exact arithmetic (`expression`, `sets`, `bound`, `tolerance`), last by `algebra`, within `work`. A `scorer` has
`judge(text, gold)` and `same(a, b)`: mathematics, `literal` texts and letters, `programs` in a `sandbox` (`compared` with what
they should print), published `graders`; `catalogue` knows them by name, `conformance` checks one. `verifier` asks a scorer in
killable `processes` and gives a `verdict`.
"""
