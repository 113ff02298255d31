"""From a caption to its perturbations: `suites` says which.

`paper` holds the frozen rules of the published benchmark. `strict` is made of `paraphrase` and `flip`, over words that
are data (`lexicon`, and `custom` for one's own); `caption` takes texts apart and `draw` chooses.
"""
