"""The colours of figures and of the page.

Every colour has a light and a dark form. Figures are drawn in the light ones; the page replaces each by a variable that
follows the reader's scheme, so no two may be the same. Palette colours stand against the paper by 4.5:1 or more, since
labels are written in them, and stay apart under red, green and blue deficiency (a test simulates these).
"""

PALETTE = ("blue", "red", "green", "purple", "brown", "navy")
LIGHT = {
    "paper": "#ffffff",
    "ink": "#1b1b1b",
    "muted": "#5c5c5c",
    "context": "#c9c9c9",
    "grid": "#ebebeb",
    "blue": "#1548dc",
    "red": "#c62b00",
    "green": "#00854d",
    "purple": "#a54ea6",
    "brown": "#611f00",
    "navy": "#002c6d",
}
DARK = {
    "paper": "#16191d",
    "ink": "#f0f0f0",
    "muted": "#aab0b7",
    "context": "#4b525a",
    "grid": "#2a2f35",
    "blue": "#207fff",
    "red": "#ff6148",
    "green": "#26ee94",
    "purple": "#ff9cff",
    "brown": "#dbcc0f",
    "navy": "#b56f7c",
}
