"""The documentation site: `make docs` builds it, without the network. What is special about it is in site_pages.py."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import site_pages

from postroad import __version__

logging.getLogger("alembic").setLevel(logging.WARNING)  # it reports its plugins when autodoc imports it

project = "postroad"
author = "the postroad authors"
release = version = __version__
html_title = f"postroad {__version__}"
project_copyright = author

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
suppress_warnings = [
    "myst.strikethrough",
    "ref.python",  # signatures say `type` and mean the builtin, and some classes have a field of that name
]

myst_heading_anchors = 4  # the anchors that GitHub makes, so that one link serves both
myst_enable_extensions = ["colon_fence"]

default_role = "literal"  # docstrings write `name` for a name, as Markdown does
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "separated"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = True  # llms.txt links to the plain Markdown
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True

setup = site_pages.setup
