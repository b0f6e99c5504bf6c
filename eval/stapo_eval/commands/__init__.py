"""One module a subcommand of `stapo-eval`: the dataclass is its flags."""
