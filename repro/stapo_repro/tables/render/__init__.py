"""The written forms of the table. All from one `Table` by one `view`, LF, no time stamp.

view      which texts stand in which cell, for every form that people read
markdown  files and the blocks of README and docs
latex     booktabs
forms     JSON with everything, CSV in long form
"""

from stapo_repro.tables.render.forms import to_csv, to_json
from stapo_repro.tables.render.latex import to_latex
from stapo_repro.tables.render.markdown import gains_block, readme_block, to_markdown

__all__ = [
    "gains_block",
    "readme_block",
    "to_csv",
    "to_json",
    "to_latex",
    "to_markdown",
]
