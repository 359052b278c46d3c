"""Names the language of a source file by its extension, or by its name."""

from __future__ import annotations

import os

_BY_EXTENSION = {
    "Assembly": ".asm .s",
    "Batchfile": ".bat .cmd",
    "C": ".c .h",
    "C#": ".cs",
    "C++": ".cc .cpp .cxx .hh .hpp .hxx",
    "CMake": ".cmake",
    "CSS": ".css",
    "Clojure": ".clj .cljs .cljc",
    "Cuda": ".cu .cuh",
    "Dart": ".dart",
    "Elixir": ".ex .exs",
    "Erlang": ".erl .hrl",
    "F#": ".fs .fsx",
    "Fortran": ".f .f90 .f95",
    "Go": ".go",
    "HTML": ".html .htm .xhtml",
    "Haskell": ".hs",
    "INI": ".ini .cfg",
    "JSON": ".json .jsonl",
    "Java": ".java",
    "JavaScript": ".js .mjs .cjs .jsx",
    "Julia": ".jl",
    "Jupyter Notebook": ".ipynb",
    "Kotlin": ".kt .kts",
    "Lean": ".lean",
    "Lua": ".lua",
    "Makefile": ".mk",
    "Markdown": ".md .markdown",
    "Nim": ".nim",
    "Nix": ".nix",
    "OCaml": ".ml .mli",
    "Objective-C": ".m .mm",
    "PHP": ".php",
    "Perl": ".pl .pm",
    "PowerShell": ".ps1 .psm1",
    "Protocol Buffer": ".proto",
    "Python": ".py .pyi .pyx",
    "R": ".r .R",
    "Ruby": ".rb",
    "Rust": ".rs",
    "SCSS": ".scss",
    "SQL": ".sql",
    "SVG": ".svg",
    "Scala": ".scala .sc",
    "Scheme": ".scm .ss",
    "Shell": ".sh .bash .zsh",
    "Swift": ".swift",
    "SystemVerilog": ".sv .svh",
    "TOML": ".toml",
    "TeX": ".tex .sty .cls .bib",
    "Text": ".txt",
    "TypeScript": ".ts .tsx .mts .cts",
    "VHDL": ".vhd .vhdl",
    "Verilog": ".v .vh",
    "Vim Script": ".vim",
    "XML": ".xml .xsd .xsl",
    "YAML": ".yaml .yml",
    "Zig": ".zig",
    "reStructuredText": ".rst",
}
_BY_NAME = {
    "Dockerfile": "Dockerfile",
    "Makefile": "Makefile",
    "GNUmakefile": "Makefile",
    "CMakeLists.txt": "CMake",
    "Rakefile": "Ruby",
    "Gemfile": "Ruby",
}
LANGUAGE_OF = {extension: name for name, extensions in _BY_EXTENSION.items() for extension in extensions.split()}


def language_of(path: str) -> str | None:
    """Return the language of a file, or None if neither its name nor its extension is known.

    >>> language_of("src/main.rs"), language_of("docker/Dockerfile"), language_of("LICENSE")
    ('Rust', 'Dockerfile', None)
    """
    name = path.rpartition("/")[2]
    return _BY_NAME.get(name) or LANGUAGE_OF.get(os.path.splitext(name)[1].lower())
