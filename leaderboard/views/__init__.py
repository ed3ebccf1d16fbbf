"""The pages, in the order of the navigation."""

from leaderboard.view import Page
from leaderboard.views import about, cell, curves, exchange, head_to_head, published, ranking, sensitivity, stability

PAGES: tuple[Page, ...] = (
    ranking.PAGE,
    head_to_head.PAGE,
    stability.PAGE,
    sensitivity.PAGE,
    curves.PAGE,
    exchange.PAGE,
    cell.PAGE,
    published.PAGE,
    about.PAGE,
)
