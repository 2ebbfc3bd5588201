import django.contrib.postgres.indexes
import django.contrib.postgres.search
from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations
from django.db.models.functions import Left


class Migration(migrations.Migration):
    # Indexing the text of a million turns takes minutes, in which runs go on reporting.
    atomic = False

    dependencies = [("episodes", "0002_told_and_graded")]

    operations = [
        RemoveIndexConcurrently("turn", "turn_text"),
        AddIndexConcurrently(
            "turn",
            django.contrib.postgres.indexes.GinIndex(
                django.contrib.postgres.search.SearchVector(Left("text", 150_000), config="simple"), name="turn_text"
            ),
        ),
    ]
