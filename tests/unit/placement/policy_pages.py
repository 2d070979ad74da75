"""Tables of ``docs/policies``."""

import re
from pathlib import Path

PAGES = Path(__file__).parents[3] / "docs" / "policies"


def page_tables(page):
    """Tables of a page: lists of rows as {column: text}."""
    found, header = [], None
    for line in (PAGES / page).read_text().splitlines():
        if not line.startswith("|"):
            header = None
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
        if header is None:
            header = cells
            found.append([])
        elif not all(re.fullmatch(r"-+", cell) for cell in cells):
            found[-1].append(dict(zip(header, cells, strict=True)))
    return found


def with_columns(page, *columns):
    return [rows for rows in page_tables(page) if set(columns) <= set(rows[0])]


def table_rows(page, first):
    """Rows of the table with a header that starts with ``first``, as lists of cells."""
    headed = (rows for rows in page_tables(page) if " | ".join(rows[0]).startswith(f"{first} |"))
    return [[cell.strip("`") for cell in row.values()] for row in next(headed)]


def numbers(text):
    return tuple(int(part) for part in text.split(","))
