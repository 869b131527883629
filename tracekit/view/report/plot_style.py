"""The style sheet of plots: colours that colour-blind people can distinguish, for light and dark pages."""

from __future__ import annotations

from typing import Final

# Dark letters are read on each of them. After Okabe and Ito, lighter.
CATEGORIES: Final = ("#7cc0ee", "#f0ac3c", "#55c2a0", "#e3a6cb", "#ece069", "#f1946a", "#8fa9e6", "#c9b18f")
_OTHERS: Final = "#b9bfc8"

_LIGHT: Final = ("#eaf0f8", "#cfdff0", "#a9c8e6", "#7aaad8", "#4b88c4", "#2a67a6", "#184a80", "#0e2f58")
_DARK: Final = ("#16202c", "#1a3350", "#204a7a", "#2d6aa9", "#4d8dca", "#7cb0de", "#aed0ee", "#e6f1fc")
# From shorter (blue) over alike to longer (orange).
_LIGHT_BOTH: Final = ("#1f5fa8", "#5c96ca", "#a5c8e6", "#dfeaf4", "#f3f3f3", "#fbe6d0", "#f4ba82", "#da7b31", "#9c4708")
_DARK_BOTH: Final = ("#9bcdf8", "#5f9bd0", "#356593", "#22394f", "#24282f", "#4b321b", "#8a531f", "#d47d33", "#ffc088")

LEVELS: Final = len(_LIGHT)
"""How many shades there are from little to much."""
DIVERGING_LEVELS: Final = len(_LIGHT_BOTH)
"""How many from less over alike to more; the one in the middle is of alike."""


def _shades(light: tuple[str, ...], dark: tuple[str, ...], name: str) -> tuple[str, str]:
    return (
        "".join(f".tk-{name}{at}{{fill:{colour}}}" for at, colour in enumerate(light)),
        "".join(f".tk-{name}{at}{{fill:{colour}}}" for at, colour in enumerate(dark)),
    )


_LEVEL_RULES: Final = _shades(_LIGHT, _DARK, "s")
_BOTH_RULES: Final = _shades(_LIGHT_BOTH, _DARK_BOTH, "d")
_CATEGORY_RULES: Final = "".join(f".tk-c{at}{{fill:{colour}}}" for at, colour in enumerate(CATEGORIES))

PLOT_CSS: Final = f"""\
.tk-plot{{display:block;box-sizing:border-box;padding-left:4.25rem;overflow:visible;font:.8125rem/1 system-ui,sans-serif;\
fill:#1b1f24;--tk-line:#0b57a4;--tk-top:#b3470a;--tk-third:#6b3fa0;--tk-grid:#dfe3e8;--tk-soft:#59626e;--tk-none:#f1f2f4;\
font-variant-numeric:tabular-nums}}
.tk-wide{{padding-left:8.5rem}}
.tk-soft{{fill:var(--tk-soft)}}
.tk-figure{{font-weight:600}}
.tk-key{{fill:#15181c;font-weight:600;font-size:.75rem}}
.tk-grid{{stroke:var(--tk-grid);stroke-width:1;shape-rendering:crispEdges}}
.tk-line{{fill:none;stroke:var(--tk-line);stroke-width:1.75;vector-effect:non-scaling-stroke;stroke-linejoin:round}}
.tk-line.tk-second{{stroke:var(--tk-top);stroke-width:1.25}}
.tk-l1{{stroke:var(--tk-top);stroke-dasharray:6 3}}
.tk-l2{{stroke:var(--tk-third);stroke-dasharray:2 3}}
.tk-l3{{stroke:#0a7a5c;stroke-dasharray:9 3 2 3}}
.tk-band{{fill:var(--tk-line);fill-opacity:.2}}
.tk-b1{{fill:var(--tk-top)}}
.tk-b2{{fill:var(--tk-third)}}
.tk-b3{{fill:#0a7a5c}}
.tk-cell{{shape-rendering:crispEdges}}
.tk-tip{{fill:transparent}}
.tk-tip:hover{{fill:currentColor;fill-opacity:.12}}
.tk-none{{fill:var(--tk-none)}}
.tk-others{{fill:{_OTHERS}}}
.tk-rest{{fill:var(--tk-none);stroke:var(--tk-soft);stroke-width:1;stroke-dasharray:2 2}}
{_CATEGORY_RULES}
{_LEVEL_RULES[0]}
{_BOTH_RULES[0]}
@media (prefers-color-scheme:dark){{
.tk-plot{{fill:#e7eaee;--tk-line:#7db8f2;--tk-top:#ff9d5c;--tk-third:#c9a6f5;--tk-grid:#2e343c;--tk-soft:#a4adb8;\
--tk-none:#1f242b}}
.tk-l3,.tk-b3{{stroke:#55c2a0}}
{_LEVEL_RULES[1]}
{_BOTH_RULES[1]}
}}
@media print{{.tk-plot{{break-inside:avoid}}}}
"""
"""What a page that shows plots puts into its style sheet."""
