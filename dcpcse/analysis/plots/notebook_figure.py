"""A matplotlib figure that a notebook shows as a picture without pyplot, which would show it a second time."""

import io

from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """A figure that a notebook shows if it is the value of a cell."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()
