from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    """The facets of the list, counted from an index in place of every run's row."""

    atomic = False

    dependencies = [("runs", "0005_listed")]

    operations = [
        AddIndexConcurrently(
            model_name="run",
            index=models.Index(
                condition=models.Q(("archived_at", None)),
                fields=["project", "state", "method", "environment", "model", "experiment", "owner"],
                name="run_facets",
            ),
        ),
    ]
