"""Which price is taken, in which order, and that nothing undated becomes money."""

from __future__ import annotations

import datetime

import pytest

from trainbudget.errors import ConfigError
from trainbudget.plan import prices
from trainbudget.plan.instance import detect_instance, parse_instance

TODAY = datetime.date(2026, 11, 30)


def test_a_given_price_beats_everything(tmp_path):
    file = tmp_path / "p.csv"
    file.write_text("accelerator,per_gpu_hour\nH100,1.00\n")
    quote = prices.resolve("H100", given="2.49 EUR/h", file=file, provider="aws", instance="p5.48xlarge", today=TODAY)
    assert (quote.per_gpu_hour, quote.currency, quote.source, quote.date) == (2.49, "EUR", "given", None)


def test_a_price_file_beats_the_table_and_names_itself(tmp_path):
    file = tmp_path / "negotiated.csv"
    file.write_text("accelerator,per_gpu_hour,currency,date\nH100,1.90,EUR,2026-10-01\n*,0.80,EUR,\n")
    h100 = prices.resolve("NVIDIA H100 80GB HBM3", file=file, provider="aws", instance="p5.48xlarge", today=TODAY)
    assert (h100.per_gpu_hour, h100.currency, h100.source, h100.date) == (1.9, "EUR", str(file), "2026-10-01")
    assert prices.resolve("L4", file=file, today=TODAY).per_gpu_hour == 0.8


def test_the_closest_row_of_a_price_file_wins(tmp_path):
    file = tmp_path / "p.csv"
    file.write_text(
        "accelerator,provider,instance_type,accelerator_count,on_demand_usd_per_hour\n"
        "H100,,,1,3\nH100,aws,,1,4\nH100,aws,p5.48xlarge,8,40\nH100,gcp,,1,9\n"
    )
    assert prices.resolve("H100", file=file, provider="aws", instance="p5.48xlarge").per_gpu_hour == 5.0
    assert prices.resolve("H100", file=file, provider="aws", instance="other").per_gpu_hour == 4.0
    assert prices.resolve("H100", file=file).per_gpu_hour == 3.0


def test_provider_and_instance_give_the_dated_row_per_gpu():
    quote = prices.resolve("H100", provider="aws", instance="p5.48xlarge", today=TODAY)
    assert (quote.per_gpu_hour, quote.source, quote.date) == (55.04 / 8, "aws p5.48xlarge", "2026-07-20")
    assert (quote.low, quote.high, quote.assumed) == (6.88, 6.88, False)


def test_spot_only_when_told_and_bounded_by_on_demand():
    assert prices.resolve("H100", provider="aws", instance="p5.48xlarge").spot is False
    quote = prices.resolve("H100", provider="aws", instance="p5.48xlarge", spot=True)
    assert (quote.per_gpu_hour, quote.spot, quote.high) == (pytest.approx(21.1543 / 8), True, 6.88)


def test_the_median_over_providers_carries_its_range_and_is_marked():
    quote = prices.resolve("A100-80GB", today=TODAY)
    assert quote.source == "median of aws, azure, gcp"
    assert quote.low < quote.per_gpu_hour < quote.high
    assert quote.assumed


def test_rows_without_a_date_are_never_money():
    assert {r.date for r in prices.price_rows() if r.accelerator == "RTX-4090"} == {None}
    assert prices.resolve("RTX-4090", today=TODAY) is None
    lambda_row = prices.resolve("H100", provider="lambda", instance="gpu_8x_h100_sxm5", today=TODAY)
    assert "lambda" not in lambda_row.source
    assert lambda_row.note == "no dated price of lambda"


def test_last_years_rows_do_not_enter_the_median():
    assert "alibaba" not in prices.resolve("A100-80GB", today=TODAY).source


def test_an_old_price_says_its_age():
    assert (
        prices.resolve("H100", provider="aws", instance="p5.48xlarge", today=datetime.date(2027, 7, 20)).note
        == "price is 365 days old"
    )


def test_unknown_accelerator_has_no_price():
    assert prices.resolve("Frobnicator 9000", today=TODAY) is None
    assert prices.resolve(None, today=TODAY) is None


def test_a_mig_slice_is_charged_by_compute_slices():
    whole, part = prices.resolve("NVIDIA A100-SXM4-80GB"), prices.resolve("NVIDIA A100-SXM4-80GB MIG 2g.20gb")
    assert part.per_gpu_hour == pytest.approx(whole.per_gpu_hour * 2 / 7)
    assert "MIG" in part.note


def test_a_quote_becomes_a_trace_fact():
    fact = prices.resolve("H100", given="2.49 USD/h").fact(3.0)
    assert (fact.t_s, fact.per_gpu_hour, fact.currency, fact.source, fact.spot) == (3.0, 2.49, "USD", "given", False)


def test_undated_row_of_a_named_instance_is_told_not_used():
    hint = prices.undated_hint("H100", "lambda", "gpu_8x_h100_sxm5")
    assert hint == "the table's 31.92 USD/h for lambda gpu_8x_h100_sxm5 has no date and is not used: give price_per_hour"
    assert prices.undated_hint("H100", "aws", "p5.48xlarge") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "no rows"), ("accelerator,per_gpu_hour\nH100,cheap\n", "line 2"), ("a,b\n1,2\n", "needs accelerator")],
)
def test_a_bad_price_file_is_one_line(tmp_path, text, message):
    file = tmp_path / "p.csv"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        prices.resolve("H100", file=file)


def test_cpu_hours_have_their_own_price():
    assert prices.cpu_hour("aws").per_gpu_hour == pytest.approx(0.8064 / 16)
    assert prices.cpu_hour().source == "median of aws, azure, gcp"


def machine(tmp_path, **files):
    for name, text in files.items():
        path = tmp_path / "sys/class/dmi/id" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return tmp_path


def test_aws_nitro_firmware_names_the_instance(tmp_path):
    found = detect_instance({"AWS_REGION": "eu-west-1"}, machine(tmp_path, sys_vendor="Amazon EC2", product_name="g5.xlarge"))
    assert (found.provider, found.instance, found.region, found.spot) == ("aws", "g5.xlarge", "eu-west-1", None)


@pytest.mark.parametrize(
    ("files", "provider"),
    [
        ({"product_name": "Google Compute Engine", "sys_vendor": "Google"}, "gcp"),
        ({"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77"}, "azure"),
        ({"sys_vendor": "Microsoft Corporation"}, None),  # plain Hyper-V
        ({"chassis_asset_tag": "OracleCloud.com"}, "oci"),
        ({"sys_vendor": "Alibaba Cloud", "product_name": "Alibaba Cloud ECS"}, "alibaba"),
        ({"sys_vendor": "LENOVO"}, None),
    ],
)
def test_firmware_tells_the_provider(tmp_path, files, provider):
    assert detect_instance({}, machine(tmp_path, **files)).provider == provider


def test_cloud_init_tells_instance_and_region(tmp_path):
    path = tmp_path / "run/cloud-init/instance-data.json"
    path.parent.mkdir(parents=True)
    path.write_text(
        '{"v1": {"cloud_name": "aws", "region": "us-east-1"}, "ds": {"meta_data": {"instance-type": "p4d.24xlarge"}}}'
    )
    found = detect_instance({}, tmp_path)
    assert (found.provider, found.instance, found.region) == ("aws", "p4d.24xlarge", "us-east-1")


@pytest.mark.parametrize(
    ("environ", "provider", "instance"),
    [
        ({"TRAINBUDGET_INSTANCE": "gcp:a2-ultragpu-1g@us-central1"}, "gcp", "a2-ultragpu-1g"),
        ({"TPU_ACCELERATOR_TYPE": "v5litepod-8"}, "gcp", "tpu-v5e-8"),
        ({"RUNPOD_POD_ID": "x"}, "runpod", None),
        ({"SKYPILOT_CLUSTER_INFO": '{"cloud": "Lambda", "region": "us-east-1"}'}, "lambda", None),
        ({"AWS_REGION": "us-east-1"}, None, None),  # set on laptops too
    ],
)
def test_environment_signals(tmp_path, environ, provider, instance):
    found = detect_instance(environ, tmp_path)
    assert (found.provider, found.instance) == (provider, instance)


def test_instance_text_without_provider_is_refused():
    with pytest.raises(ConfigError, match="provider:instance"):
        parse_instance(":p5.48xlarge")
