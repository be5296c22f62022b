"""Addresses of the pages."""

from django.urls import URLPattern, URLResolver, path
from django.views.i18n import set_language

from portal.accounts import views as accounts
from portal.cluster import views as cluster
from portal.jobs.views import job as job_views
from portal.jobs.views import listing, queues, submit
from portal.quotas import views as quotas
from portal.usage import views as usage
from portal.web import views as web

urlpatterns: list[URLPattern | URLResolver] = [
    path("", web.home, name="home"),
    path("jobs", listing.jobs_page, name="jobs"),
    path("jobs/table", listing.jobs_table, name="jobs-table"),
    path("submit", submit.submit_page, name="submit"),
    path("submit/sync", submit.submit_sync, name="submit-sync"),
    path("jobs/<str:job_id>", job_views.job_page, name="job"),
    path("jobs/<str:job_id>/live", job_views.job_live, name="job-live"),
    path("jobs/<str:job_id>/log", job_views.job_log, name="job-log"),
    path("jobs/<str:job_id>/log/file", job_views.job_log_file, name="job-log-file"),
    path("jobs/<str:job_id>/ledger", usage.job_ledger, name="job-ledger"),
    path("jobs/<str:job_id>/resume", job_views.job_resume_view, name="job-resume"),
    path("jobs/<str:job_id>/<str:act>", job_views.job_act, name="job-act"),
    path("queue", queues.queue_page, name="queue"),
    path("cluster", web.cluster_page, name="cluster"),
    path("cluster/node", cluster.node_act, name="node-act"),
    path("usage", usage.usage_page, name="usage"),
    path("usage.csv", usage.usage_csv_page, name="usage-csv"),
    path("quota", quotas.quota_page, name="quota"),
    path("quota/<int:quota_id>", web.quota_edit, name="quota-edit"),
    path("teams", web.teams_page, name="teams"),
    path("teams/<slug:name>", web.team_page, name="team"),
    path("account", accounts.account_page, name="account"),
    path("account/tokens", accounts.token_new, name="token-new"),
    path("account/tokens/<str:token_id>/revoke", accounts.token_revoke, name="token-revoke"),
    path("theme", web.theme, name="theme"),
    path("language", set_language, name="set_language"),
]
