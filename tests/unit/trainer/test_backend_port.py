from services.trainer.backend.port import StepMetrics


def test_metrics_give_their_fields_by_name_as_floats():
    metrics = StepMetrics(
        loss=0.5,
        grad_norm=1.0,
        learning_rate=0.1,
        clip_fraction=0.0,
        approx_kl=0.0,
        ratio_mean=1.0,
        ratio_max=1.0,
        entropy=2.0,
        num_rows=3,
        num_tokens=9,
        num_micro_batches=1,
    )
    found = metrics.as_dict()
    assert found["num_tokens"] == 9.0
    assert all(isinstance(value, float) for value in found.values())
    assert len(found) == 11
