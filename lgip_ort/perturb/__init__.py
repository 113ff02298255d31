"""From a caption to its perturbations: `suites` says which, `paraphrase` and `flip` make them, `draw` chooses."""
