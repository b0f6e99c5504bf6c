"""The miniature: a tiny base model, its training problems and its benchmarks, all from one seed."""
