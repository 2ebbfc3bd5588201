from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("checkpoints", "0002_initial")]

    operations = [migrations.AddField("checkpoint", "trained_on", models.JSONField(db_default=[], default=list))]
