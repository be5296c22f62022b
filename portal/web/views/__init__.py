"""Pages that draw on several apps at once."""

from portal.web.views.cluster import cluster_page
from portal.web.views.home import home
from portal.web.views.quota_edit import quota_edit
from portal.web.views.teams import team_page, teams_page
from portal.web.views.theme import theme

__all__ = ["cluster_page", "home", "quota_edit", "team_page", "teams_page", "theme"]
