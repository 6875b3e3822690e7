"""The page's looks: light, dark, print and narrow screens. No font, picture or address from elsewhere."""

from __future__ import annotations

from nectar.charts import css_variables

_LIGHT = (
    "--ink:#1a1b1c;--muted:#50565c;--paper:#ffffff;--grid:#d7d8d9;--box:#f3f4f5;--link:#0b57a4;"
    "--good:#0a6b35;--bad:#a61b1b;--open:#7a4b00;--bar:#0072b2;"
    "--shade-1:#e6f0f7;--shade-2:#cbe1f0;--shade-3:#a5cde6;--shade-4:#7db7da;"
)
_DARK = (
    "--ink:#e8eaec;--muted:#adb4bb;--paper:#15181c;--grid:#3b4148;--box:#1f242a;--link:#8cc4ff;"
    "--good:#63d297;--bad:#ff9c94;--open:#f0bd63;--bar:#56b4e9;"
    "--shade-1:#1b2c39;--shade-2:#1f3c50;--shade-3:#224c68;--shade-4:#255c80;"
)

#: colours by role, of a page or of a drawing that stands alone
COLOURS = f""":root{{color-scheme:light dark;{_LIGHT}{css_variables()}}}
@media screen and (prefers-color-scheme:dark){{:root{{{_DARK}{css_variables(dark=True)}}}}}"""

CSS = f"""
{COLOURS}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--paper);color:var(--ink);font:1rem/1.5 system-ui,sans-serif;overflow-wrap:anywhere}}
header,main,nav,footer{{max-width:72rem;margin:0 auto;padding:0 1rem}}
h1{{font-size:1.6rem;line-height:1.2;margin:1.5rem 0 .5rem}}
h2{{font-size:1.3rem;margin:2.5rem 0 .5rem;border-top:1px solid var(--grid);padding-top:1rem}}
h3{{font-size:1.1rem;margin:1.75rem 0 .5rem}}
h4{{font-size:1rem;margin:1.25rem 0 .5rem}}
p,ul,dl{{max-width:46rem}}
a{{color:var(--link)}}
:focus-visible{{outline:3px solid var(--link);outline-offset:2px}}
.skip{{position:absolute;left:-99rem}}
.skip:focus{{left:1rem;top:.5rem;background:var(--paper);padding:.5rem}}
.outcome{{border-left:.4rem solid;padding:.4rem .8rem;background:var(--box);font-weight:600}}
.good{{color:var(--good)}}.bad{{color:var(--bad)}}.open{{color:var(--open)}}
.note{{color:var(--muted)}}
.figures{{display:flex;flex-wrap:wrap;gap:.75rem;padding:0;list-style:none;max-width:none}}
.figures li{{flex:1 1 9rem;background:var(--box);padding:.6rem .8rem}}
.figures strong{{display:block;font-size:1.6rem;line-height:1.2}}
.figures span{{color:var(--muted);font-size:.875rem}}
nav ul{{display:flex;flex-wrap:wrap;gap:.3rem 1rem;padding:0;list-style:none;max-width:none}}
dl{{display:grid;gap:.15rem;margin:.75rem 0}}
dl div{{display:grid;grid-template-columns:minmax(7rem,12rem) 1fr;gap:.75rem}}
dt{{color:var(--muted)}}dd{{margin:0}}
.scroll{{overflow-x:auto;max-width:100%;margin:.75rem 0}}
table{{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums;overflow-wrap:normal}}
caption{{text-align:left;font-weight:600;padding:.3rem 0}}
th,td{{padding:.25rem .6rem;text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap}}
th{{font-weight:600}}
tbody th,tfoot th,thead th:first-child{{text-align:left}}
tfoot th,tfoot td{{border-top:2px solid var(--ink)}}
td.words{{text-align:left;white-space:normal;min-width:16rem}}
td.left,th.left{{text-align:left}}
.s1{{background:var(--shade-1)}}.s2{{background:var(--shade-2)}}
.s3{{background:var(--shade-3)}}.s4{{background:var(--shade-4)}}
.zero{{color:var(--muted)}}
.bar{{display:block;width:10rem;height:.8rem;border:1px solid var(--muted)}}
.bar span{{display:block;height:100%;background:var(--bar)}}
.charts{{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,22rem),1fr));gap:1rem;max-width:64rem}}
svg{{display:block;width:100%;height:auto}}
img{{display:block;max-width:none;image-rendering:pixelated}}
.strip{{width:calc(var(--n)*2.75rem);margin-bottom:.15rem}}
.strip img{{width:100%;height:auto}}
.apart{{display:grid;grid-template-columns:repeat(var(--n),2.75rem);font-size:.75rem}}
.apart span{{text-align:left}}
table.pictures{{font-size:.8rem}}
table.pictures caption{{white-space:normal;min-width:15rem}}
table.pictures th,table.pictures td{{text-align:left;vertical-align:top;padding-top:.5rem}}
details{{margin:.5rem 0}}
summary{{cursor:pointer;padding:.35rem 0;font-weight:600}}
pre{{font:.8rem/1.45 ui-monospace,monospace;background:var(--box);padding:.75rem;margin:0}}
pre{{width:max-content;min-width:100%}}
code{{font:.875em ui-monospace,monospace}}
footer{{margin:3rem auto;color:var(--muted)}}
@media screen and (min-width:88rem){{
body{{display:grid;grid-template:"nav header" auto "nav main" 1fr "nav footer" auto/14rem minmax(0,68rem)}}
body{{justify-content:center}}
header{{grid-area:header}}main{{grid-area:main}}footer{{grid-area:footer}}
header,main,footer{{width:100%}}
nav{{grid-area:nav;position:sticky;top:0;align-self:start;max-height:100vh;overflow:auto;padding-top:1.5rem}}
nav ul{{display:block}}nav li{{margin:.4rem 0}}
}}
@media (max-width:34rem){{dl div{{grid-template-columns:1fr;gap:0}}dd{{margin-bottom:.4rem}}
.bar{{width:6rem}}td.words{{min-width:9rem}}}}
@media print{{
@page{{margin:14mm}}
*{{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
body{{font-size:10pt}}
nav,.skip{{display:none}}
details::details-content{{content-visibility:visible;block-size:auto}}
.scroll{{overflow:visible}}
table{{font-size:7.5pt}}th,td{{padding:.1rem .3rem}}
.strip{{width:calc(var(--n)*9mm)}}.apart{{grid-template-columns:repeat(var(--n),9mm);font-size:6.5pt}}
.charts{{grid-template-columns:1fr 1fr}}
.chart,tr,dl div,.strip{{break-inside:avoid}}
h2,h3,h4,caption,summary,thead{{break-after:avoid}}
pre{{white-space:pre-wrap;width:auto}}
}}
"""
