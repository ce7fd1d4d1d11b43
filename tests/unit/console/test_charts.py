"""Charts are well-formed SVG with words, and nothing from outside gets out of them."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from postroad.console.charts import Box, Cell, Mark, graph, heatmap, throughput

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</title><script>alert(1)</script>\u202e"


def test_throughput_has_a_bar_for_each_minute_and_marks() -> None:
    chart = ET.fromstring(throughput([0, 5, 10], [Mark(1.0, "ben: pause"), Mark(99.0, "long ago")], name="default"))
    bars = chart.findall(f"{SVG}rect")
    assert [float(bar.attrib["height"]) > 0 for bar in bars] == [False, True, True]
    assert float(bars[1].attrib["height"]) * 2 == float(bars[2].attrib["height"])
    assert [title.text for title in chart.iter(f"{SVG}title")][1:] == [
        "2 min ago: 0 published",
        "1 min ago: 5 published",
        "this minute: 10 published",
        "ben: pause",
    ]
    assert chart.attrib["role"] == "img"
    assert "15 messages published to default in the last 3 minutes" in chart.attrib["aria-label"]


def test_nothing_published_is_a_chart_without_bars() -> None:
    chart = ET.fromstring(throughput([], [], name="x"))
    assert chart.findall(f"{SVG}rect") == []


def test_a_heatmap_shades_by_number_and_leaves_nothing_out() -> None:
    cells = [Cell(0, 0, 1, "one"), Cell(1, 1, 1000, "most"), Cell(1, 0, 0, "none")]
    chart = ET.fromstring(heatmap(cells, columns=["a", "b"], rows=["low", "high"], title="t", description="d"))
    assert [cell.attrib["class"] for cell in chart.findall(f"{SVG}rect")] == ["heat heat-1", "heat heat-9"]


def test_a_graph_goes_from_causes_to_what_they_caused() -> None:
    boxes = [Box("c", "C", ""), Box("a", "A", "", "/a", "this"), Box("b", "B", "")]
    chart = ET.fromstring(graph(boxes, [("a", "b"), ("b", "c"), ("x", "a")], title="t", description="d"))
    places = {node[1].text: float(node[0].attrib["x"]) for node in chart.iter(f"{SVG}g")}
    assert places["A"] < places["B"] < places["C"]
    assert len(chart.findall(f"{SVG}path")) == 2
    assert [link.attrib["href"] for link in chart.iter(f"{SVG}a")] == ["/a"]


def test_a_circle_is_drawn_too() -> None:
    ET.fromstring(graph([Box("a", "A", ""), Box("b", "B", "")], [("a", "b"), ("b", "a")], title="", description=""))


@given(st.text())
def test_texts_from_outside_are_only_texts(text: str) -> None:
    for hostile in (HOSTILE, text):
        charts = (
            throughput([1], [Mark(0, hostile)], name=hostile),
            heatmap([Cell(0, 0, 1, hostile)], columns=[hostile], rows=[hostile], title=hostile, description=hostile),
            graph([Box("a", hostile, hostile, "/a", "this")], [], title=hostile, description=hostile),
        )
        for chart in charts:
            assert "<script" not in chart
            assert "\u202e" not in chart
