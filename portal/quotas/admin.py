"""Queues, cohorts and quotas in Django's admin. Each change is an event with its before and after."""

from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.forms import ModelForm
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from portal.accounts.models import User
from portal.events.services import event_record
from portal.quotas.models import Cohort, Queue, Quota
from portal.quotas.services import MAX_LIMIT, LimitChange, limits_json, quota_change
from portal.web.admin_base import KeptAdmin


class VersionedForm(forms.ModelForm):
    """A form that knows for which version of the row it was opened."""

    version = forms.IntegerField(widget=forms.HiddenInput)
    reason = forms.CharField(max_length=500, label=_("Why"), widget=forms.TextInput(attrs={"size": 80}))

    def clean(self) -> dict[str, Any] | None:
        """Refuse what would overwrite somebody else's change."""
        cleaned = super().clean()
        model = self._meta.model
        if self.instance.pk and not self.instance._state.adding:
            version = model.objects.values_list("version", flat=True).get(pk=self.instance.pk)
            if version != self.cleaned_data.get("version"):
                raise ValidationError(_("Somebody else changed this since you opened it. Load the page again."))
        return cleaned


class QuotaForm(VersionedForm):
    """New limits of a quota."""

    class Meta:
        model = Quota
        fields = ("queue", "cohort", "gpu_type", "nominal", "borrow_limit", "lend_limit", "version")

    def clean(self) -> dict[str, Any] | None:
        """The numbers in their bounds, and one owner."""
        cleaned = super().clean()
        for name in ("nominal", "borrow_limit", "lend_limit"):
            value = self.cleaned_data.get(name)
            if value is not None and value > MAX_LIMIT:
                self.add_error(name, _("At most %(most)d.") % {"most": MAX_LIMIT})
        if self.instance._state.adding and bool(self.cleaned_data.get("queue")) == bool(
            self.cleaned_data.get("cohort")
        ):
            raise ValidationError(_("A quota is of one queue or of one cohort."))
        return cleaned


@admin.register(Quota)
class QuotaAdmin(KeptAdmin):
    """Limits per queue and GPU type. The page of the portal also shows who is affected before it saves."""

    form = QuotaForm
    list_display = ("owner_name", "gpu_type", "nominal", "borrow_limit", "lend_limit", "used", "version")
    list_filter = ("gpu_type",)
    list_select_related = ("queue", "cohort")

    def get_readonly_fields(self, request: HttpRequest, obj: Quota | None = None) -> tuple[str, ...]:
        """What a limit is of never changes; what is used is counted, not typed."""
        return ("queue", "cohort", "gpu_type", "used") if obj else ()

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """A new row is of version 1."""
        return {**super().get_changeform_initial_data(request), "version": 1}

    def save_model(self, request: HttpRequest, obj: Quota, form: ModelForm, change: bool) -> None:
        """Through the service, so that the rules of changes hold here too."""
        now, reason = timezone.now(), form.cleaned_data["reason"]
        if change:
            limits = LimitChange(obj.nominal, obj.borrow_limit, obj.lend_limit)
            fresh = Quota.objects.get(pk=obj.pk)
            version = form.cleaned_data["version"]
            assert isinstance(request.user, User), "the admin's own gate has turned strangers away"
            quota_change(quota=fresh, change=limits, user=request.user, version=version, now=now, reason=reason)
            return
        obj.save()
        event_record(
            subject=obj, verb="create", after=limits_json(obj), at=now, actor=request.user.username, reason=reason
        )


class _VersionedAdmin(KeptAdmin):
    """Rows whose plain fields are changed here: version up, event written, in the admin's own transaction."""

    tracked: tuple[str, ...] = ()

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """A new row is of version 1."""
        return {**super().get_changeform_initial_data(request), "version": 1}

    def save_model(self, request: HttpRequest, obj: Any, form: ModelForm, change: bool) -> None:
        """Save, count the version up, and record what changed."""
        values = {name: _plain(getattr(obj, name)) for name in self.tracked}
        before = None
        if change:
            old = type(obj).objects.select_for_update().get(pk=obj.pk)
            before = {name: _plain(getattr(old, name)) for name in self.tracked}
            obj.version = old.version + 1
        obj.save()
        event_record(
            subject=obj,
            verb="change" if change else "create",
            before=before,
            after=values,
            at=timezone.now(),
            actor=request.user.username,
            reason=form.cleaned_data["reason"],
        )


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (int, str)) else str(value)


@admin.register(Queue)
class QueueAdmin(_VersionedAdmin):
    """Queues: their cohort, weight and who may be preempted for them."""

    class Form(VersionedForm):
        """Its fields."""

        class Meta:
            model = Queue
            fields = (
                "name", "team", "cohort", "weight", "within_queue", "reclaim_within_cohort", "borrow_within_cohort", "version",
            )  # fmt: skip

    form = Form
    tracked = ("name", "team", "cohort", "weight", "within_queue", "reclaim_within_cohort", "borrow_within_cohort")
    list_display = ("name", "team", "cohort", "weight", "version")
    list_select_related = ("team", "cohort")

    def get_readonly_fields(self, request: HttpRequest, obj: Queue | None = None) -> tuple[str, ...]:
        """Jobs and the ledger know a queue by its name and team."""
        return ("name", "team") if obj else ()


@admin.register(Cohort)
class CohortAdmin(_VersionedAdmin):
    """Cohorts: queues that lend to each other."""

    class Form(VersionedForm):
        """Its fields."""

        class Meta:
            model = Cohort
            fields = ("name", "parent", "weight", "version")

        def clean(self) -> dict[str, Any] | None:
            """A tree has no ring."""
            cleaned = super().clean()
            above, name = self.cleaned_data.get("parent"), self.cleaned_data.get("name") or self.instance.pk
            while above is not None:
                if above.pk == name:
                    raise ValidationError(_("A cohort cannot be below itself."))
                above = above.parent
            return cleaned

    form = Form
    tracked = ("parent", "weight")
    list_display = ("name", "parent", "weight", "version")

    def get_readonly_fields(self, request: HttpRequest, obj: Cohort | None = None) -> tuple[str, ...]:
        """The name is what queues refer to."""
        return ("name",) if obj else ()
