"""Every address of the portal."""

from django.contrib import admin
from django.urls import include, path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from portal.cluster.api import ACTS, NodeActView, NodesView
from portal.health import healthz, readyz
from portal.jobs import api as jobs
from portal.jobs import runner_api as runner
from portal.quotas.api import QuotasView, QuotaView
from portal.usage.api import UsageView

api = [
    path("jobs", jobs.JobsView.as_view()),
    path("jobs/<str:job_id>", jobs.job_detail),
    *[
        path(f"jobs/<str:job_id>/{act}", jobs.JobActView.as_view(), {"act": act})
        for act in ("cancel", "hold", "release", "resume")
    ],
    path("jobs/<str:job_id>/timeline", jobs.TimelineView.as_view()),
    path("jobs/<str:job_id>/metrics", jobs.MetricsView.as_view()),
    path("jobs/<str:job_id>/logs", jobs.LogsView.as_view()),
    path("jobs/<str:job_id>/checkpoints", jobs.CheckpointsView.as_view()),
    path("attempts/<str:attempt_id>", jobs.AttemptView.as_view()),
    path("attempts/<str:attempt_id>/ranks", jobs.RanksView.as_view()),
    path("nodes", NodesView.as_view()),
    *[path(f"nodes/<str:name>/{act}", NodeActView.as_view(), {"act": act}) for act in ACTS],
    path("quotas", QuotasView.as_view()),
    path("quotas/<int:quota_id>", QuotaView.as_view()),
    path("usage", UsageView.as_view()),
    path("schema", SpectacularAPIView.as_view(), name="schema"),
    path("docs", SpectacularSwaggerSplitView.as_view(url_name="schema"), name="api-docs"),
    path("flow/attempts/<str:attempt_id>/claim", runner.ClaimView.as_view()),
    path("flow/attempts/<str:attempt_id>/heartbeat", runner.HeartbeatView.as_view()),
    path("flow/attempts/<str:attempt_id>/agents/<str:node>/launch", runner.LaunchView.as_view()),
    path("flow/attempts/<str:attempt_id>/settle", runner.SettleView.as_view()),
    path("agent/report", runner.AgentReportView.as_view()),
]

urlpatterns = [
    path("healthz", healthz),
    path("readyz", readyz),
    path("api/v1/", include(api)),
    path("accounts/", include("allauth.account.urls")),
    path("admin/", admin.site.urls),
    path("", include("portal.web.urls")),
]
