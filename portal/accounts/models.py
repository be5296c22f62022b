"""Users, teams, memberships and API tokens."""

from django.contrib.auth.models import AbstractUser
from django.db import models
from django.utils.translation import gettext_lazy as _

from portal import ids


class Role(models.TextChoices):
    """What a member may do in a team; each role may do all that the ones before it may."""

    VIEWER = "viewer", _("viewer")
    MEMBER = "member", _("member")
    MANAGER = "manager", _("manager")
    OWNER = "owner", _("owner")


class User(AbstractUser):
    """A person, or a service account through which a pipeline or a flow acts."""

    id = models.CharField(primary_key=True, max_length=40, default=ids.user_id, editable=False)
    is_service = models.BooleanField(default=False)

    class Meta(AbstractUser.Meta):
        db_table = "user"

    def __str__(self) -> str:
        return self.username


class Team(models.Model):
    """People who share queues and quota."""

    id = models.CharField(primary_key=True, max_length=40, default=ids.team_id, editable=False)
    name = models.SlugField(unique=True, max_length=60)
    created_at = models.DateTimeField()
    version = models.PositiveIntegerField(default=1)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class Membership(models.Model):
    """A user's role in a team."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("team", "user"), name="one_role_per_team"),)

    def __str__(self) -> str:
        return f"{self.user} in {self.team}: {self.role}"


class Token(models.Model):
    """An API token. The secret is shown once; only its keyed digest is kept."""

    id = models.CharField(primary_key=True, max_length=40, default=ids.token_id, editable=False)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=100)
    public_part = models.CharField(max_length=24, unique=True)
    digest = models.CharField(max_length=64)
    scopes = models.JSONField(default=list)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    last_used_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"{self.name} ({self.public_part})"
