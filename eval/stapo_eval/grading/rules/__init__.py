r"""Rule grading: is the extracted answer the gold answer? Pure functions, in the order in which an answer is graded.

1. **Text to form.** `text/` cleans the answer (`cleaning`: Unicode, sizes, spacing) and cuts it into tokens (`tokens`,
   with the tables of `vocabulary` and `units`); it reads plain numbers at once. `forms/` reads the tokens into
   one of eight forms (`types`): a value with its unit, a list or set, a tuple or interval, a relation, a matrix, a
   ratio, a number in a base, words. `reading` does it with `split`, `relations`, `quantity` and `expression`.
2. **Form to value.** A value is the tree of an expression. `values/` says what a tree is (`trees`) and what it is
   worth (`evaluate`: exact fractions, else 60 digits).
3. **Values compared.** `compare/forms` pairs the parts of two forms, `compare/scalars` compares their values with unit,
   per cent and tolerance, and `values/identity` says whether two expressions are equal: at points, and for huge
   numbers modulo primes (`values/modular`).

    r"\frac{3}{4}\text{ cm}"  ->  Scalar(("/", ("num", 3), ("num", 4)), cm)  ->  3/4  ==  the gold's 0.75

`verdict` runs these stages. `quick` decides what needs no algebra and is safe on any input; `full` may take any time
and memory on a hostile answer and runs in the worker processes of `grading.pool` only. What nothing here can read,
`library` asks math-verify 0.9.0 about. `justrl` is the rule of a preset of its own.
"""

from stapo_eval.grading.rules.verdict import Gold, Options, Preset, check_preset, full, grader_version, in_one, quick

__all__ = ["Gold", "Options", "Preset", "check_preset", "full", "grader_version", "in_one", "quick"]
