from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    """The newest runs of several projects at once, without sorting them all."""

    atomic = False

    dependencies = [("runs", "0004_kind")]

    operations = [
        AddIndexConcurrently(
            model_name="run",
            index=models.Index(condition=models.Q(("archived_at", None)), fields=["-created_at", "-id"], name="run_listed"),
        ),
    ]
