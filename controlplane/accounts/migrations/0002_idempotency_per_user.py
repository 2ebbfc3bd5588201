import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("accounts", "0001_initial")]

    operations = [
        # Keys live for two days and belong to nobody yet: a repeat after the upgrade is served anew.
        migrations.RunSQL("DELETE FROM accounts_idempotencykey", migrations.RunSQL.noop),
        migrations.RemoveConstraint("idempotencykey", "one_answer_per_key"),
        migrations.AddField(
            "idempotencykey",
            "user",
            models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="+", to=settings.AUTH_USER_MODEL, default=None),
            preserve_default=False,
        ),
        migrations.AlterField(
            "idempotencykey",
            "team",
            models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name="+", to="accounts.team"),
        ),
        migrations.AlterField("idempotencykey", "created_at", models.DateTimeField(auto_now_add=True, db_index=True)),
        migrations.AddConstraint(
            "idempotencykey",
            models.UniqueConstraint(fields=("user", "team", "path", "key"), name="one_answer_per_key", nulls_distinct=False),
        ),
    ]
