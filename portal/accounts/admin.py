"""People, teams and tokens in Django's admin."""

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import Group
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from portal.accounts.models import Team, Token, User
from portal.web.admin_base import ReadOnlyAdmin

# Roles live in teams; Django's groups would be a second, silent way to give rights.
admin.site.unregister(Group)


@admin.register(User)
class PersonAdmin(UserAdmin):
    """People and service accounts. Who has left is made inactive: jobs and events keep the name."""

    list_display = ("username", "first_name", "last_name", "is_active", "is_superuser", "is_service", "last_login")
    list_filter = ("is_active", "is_superuser", "is_service")
    filter_horizontal = ()
    fieldsets = (
        (None, {"fields": ("username", "password")}),
        (_("Person"), {"fields": ("first_name", "last_name", "email", "is_service")}),
        (_("May"), {"fields": ("is_active", "is_staff", "is_superuser")}),
        (_("Dates"), {"fields": ("last_login", "date_joined")}),
    )

    def has_delete_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        """Never: see the class."""
        return False


@admin.register(Team)
class TeamAdmin(ReadOnlyAdmin):
    """Teams; members are changed on the team's own page, which writes the events."""

    list_display = ("name", "created_at", "members")

    @admin.display(description=_("members"))
    def members(self, team: Team) -> SafeString:
        """How many there are, as a link to the page that changes them."""
        return format_html('<a href="{}">{}</a>', reverse("team", args=[team.name]), team.memberships.count())


@admin.register(Token)
class TokenAdmin(ReadOnlyAdmin):
    """Tokens of all people: to look at and to revoke."""

    list_display = ("name", "user", "public_part", "created_at", "expires_at", "last_used_at", "revoked_at")
    list_select_related = ("user",)
    search_fields = ("name", "user__username", "public_part")
    exclude = ("digest",)
    actions = ("revoke",)

    @admin.action(description=_("Revoke the chosen tokens"), permissions=["view"])
    def revoke(self, request: HttpRequest, rows: QuerySet[Token]) -> None:
        """Make the tokens useless, at once and for good."""
        count = rows.filter(revoked_at__isnull=True).update(revoked_at=timezone.now())
        self.message_user(request, _("%(count)d tokens are revoked.") % {"count": count})
