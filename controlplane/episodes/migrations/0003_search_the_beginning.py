import django.contrib.postgres.indexes
import django.contrib.postgres.search
from django.db import migrations
from django.db.models.functions import Left


class Migration(migrations.Migration):
    dependencies = [("episodes", "0002_told_and_graded")]

    operations = [
        migrations.RemoveIndex("turn", "turn_text"),
        migrations.AddIndex(
            "turn",
            django.contrib.postgres.indexes.GinIndex(
                django.contrib.postgres.search.SearchVector(Left("text", 150_000), config="simple"), name="turn_text"
            ),
        ),
    ]
