"""What goes wrong with a Ray cluster is one line, and what is ours is left again."""

import sys

import pytest

from dllmark.cluster import cluster
from dllmark.errors import DllmarkError

ray = pytest.importorskip("ray", reason="pip install 'dllmark[ray]'")


@pytest.fixture
def calls(monkeypatch):
    """What would be asked of Ray, without one being started."""
    made = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **options: made.append(options))
    monkeypatch.setattr(ray, "shutdown", lambda: made.append("left"))
    return made


def test_a_cluster_is_left_at_the_end_even_after_an_error(calls):
    with pytest.raises(KeyError), cluster(cores=3):
        raise KeyError
    assert calls[0]["address"] == "local"
    assert calls[0]["num_cpus"] == 3
    assert calls[0]["log_to_driver"] is False
    assert calls[1:] == ["left"]


def test_the_cluster_in_use_is_used_and_not_left(calls, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    with cluster("10.0.0.1:6379"):
        pass
    assert calls == []


def test_an_address_is_passed_on_and_its_size_is_its_own(calls):
    with cluster("10.0.0.1:6379", cores=3):
        pass
    assert calls[0]["address"] == "10.0.0.1:6379"
    assert "num_cpus" not in calls[0]


def test_a_cluster_that_is_not_there_is_a_clear_error(calls, monkeypatch):
    def nowhere(**options):
        raise ConnectionError("traceback\nno cluster at 10.0.0.1:6379")

    monkeypatch.setattr(ray, "init", nowhere)
    with (
        pytest.raises(DllmarkError, match="cannot reach the Ray cluster: no cluster at"),
        cluster("10.0.0.1:6379"),
    ):
        pytest.fail("there is no cluster")


def test_an_error_of_ray_is_its_last_line(calls):
    told = pytest.raises(DllmarkError, match=r"^Ray could not finish: the worker died\. What is")
    with told, cluster():
        raise ray.exceptions.RayError("a long\ntraceback\nthe worker died")


def test_without_ray_it_is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DllmarkError, match=r"pip install 'dllmark\[ray\]'"), cluster():
        pytest.fail("there is no Ray")
