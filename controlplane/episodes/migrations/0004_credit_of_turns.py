from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("episodes", "0003_search_the_beginning")]

    operations = [
        migrations.AddField("episode", "turn_credit", models.JSONField(db_default=[], default=list)),
        migrations.AddField("turn", "facts", models.JSONField(db_default={}, default=dict)),
    ]
