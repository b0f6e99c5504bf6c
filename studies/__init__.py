"""Studies read what the product records, and make claims. Nobody imports them. Run them from the clone."""

import sys
from pathlib import Path

# `python -m studies.NAME` puts the clone first on the search path, and children inherit it: a user's file there would
# take the place of a library's of its name
if sys.path[0] == str(Path(__file__).parents[1]):
    sys.path.append(sys.path.pop(0))
