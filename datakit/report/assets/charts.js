
"use strict";
// Draws the charts of a report with Apache ECharts, from the JSON in the page; figures.py describes the data.
// Colors come from the style sheet. Charts are drawn again if the color scheme, the width or the zoom changes.
(() => {
  const charts = JSON.parse(document.getElementById("data").textContent);
  const NARROW = 560;
  const UNITS = { bytes: ["B", "kB", "MB", "GB", "TB", "PB"], count: ["", " k", " M", " G", " T"] };

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  function scaled(value, units, digits) {
    let unit = 0;
    while (Math.abs(value) >= 999.5 && unit < units.length - 1) { value /= 1000; unit += 1; }
    return `${Number(value.toPrecision(digits)).toLocaleString("en-US")}${units === UNITS.bytes ? " " : ""}${units[unit]}`;
  }

  function seconds(value) {
    if (value < 120) return `${Number(value.toPrecision(3))} s`;
    if (value < 600) return `${Number((value / 60).toFixed(1))} min`;
    const minutes = Math.round(value / 60);
    return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
  }

  function short(value, unit) {
    if (unit === "bytes") return scaled(value, UNITS.bytes, 3);
    if (unit === "seconds") return seconds(value);
    if (unit === "count") return scaled(value, UNITS.count, 3);
    return Math.abs(value) >= 1000 ? scaled(value, UNITS.count, 3) : String(Number(value.toPrecision(4)));
  }

  const full = (value, unit) => (unit === "count" ? value.toLocaleString("en-US") : short(value, unit));

  // A tooltip made of elements, never of markup, so a name of a source cannot be read as HTML.
  function tip(title, lines) {
    const box = document.createElement("div");
    box.className = "tip";
    const head = document.createElement("b");
    head.textContent = title;
    box.append(head);
    for (const line of lines) {
      const row = document.createElement("div");
      row.textContent = line;
      box.append(row);
    }
    return box;
  }

  const named = (rows, unit) =>
    rows.filter((row) => row.value != null).map((row) => `${row.seriesName}: ${full(row.value, unit)}`);

  function base(theme) {
    return {
      animation: false,
      textStyle: { fontFamily: theme.font, fontSize: 12, color: theme.soft },
      tooltip: {
        confine: true, backgroundColor: theme.surface, borderColor: theme.strong, borderWidth: 1, padding: [6, 10],
        textStyle: { color: theme.ink, fontSize: 13 }, extraCssText: "box-shadow: 0 2px 10px rgba(0,0,0,.12)",
        transitionDuration: 0,
      },
    };
  }

  // Ticks of an axis in seconds lie at full seconds, minutes or hours.
  function interval(unit, end, parts) {
    if (unit !== "seconds" || end <= 100) return undefined;
    return [30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10800, 21600, 43200].find((one) => end / one <= parts + 1)
      ?? 86400 * Math.ceil(end / 86400 / parts);
  }

  const valueAxis = (theme, unit, more, end = 0) => ({
    type: "value", splitNumber: theme.narrow ? 3 : 5, interval: interval(unit, end, theme.narrow ? 3 : 5), axisLabel: { color: theme.soft, hideOverlap: true,
      formatter: (value) => short(value, unit) }, splitLine: { lineStyle: { color: theme.line } }, minInterval: unit === "count" ? 1 : undefined,
    ...more,
  });

  const nameAxis = (theme, categories, more) => ({
    type: "category", data: categories, axisTick: { show: false }, axisLine: { lineStyle: { color: theme.strong } },
    axisLabel: { color: theme.ink, width: theme.narrow ? 92 : 190, overflow: "truncate", interval: 0 }, ...more,
  });

  // The rectangles of stacked bins, without empty ones: [start, end, bottom, top, stage].
  function stacked({ busy, width }) {
    const heights = busy[0].map(() => 0);
    return busy.flatMap((values, stage) => values.map((value, bin) =>
      [bin * width, (bin + 1) * width, heights[bin], heights[bin] += value, stage])).filter((one) => one[3] > one[2]);
  }

  const legend = (theme, series) =>
    series.length > 1
      ? { top: 0, left: 0, icon: "roundRect", itemWidth: 10, itemHeight: 10, itemGap: 16, textStyle: { color: theme.soft } }
      : { show: false };

  const DRAW = {
    bars(data, theme) {
      const top = data.series.length > 1 ? 30 : 6;
      return {
        height: top + 30 + 27 * data.categories.length,
        option: {
          legend: legend(theme, data.series),
          grid: { left: 14, right: 24, top, bottom: 4, containLabel: true },
          xAxis: valueAxis(theme, data.unit, {}, Math.max(...data.categories.map((_, at) =>
            data.series.reduce((sum, one) => sum + (one.values[at] ?? 0), 0)))),
          yAxis: nameAxis(theme, data.categories, { inverse: true }),
          tooltip: { trigger: "axis", axisPointer: { type: "shadow" },
            formatter: (rows) => tip(rows[0].name, named(rows, data.unit)) },
          series: data.series.map((one) => ({
            name: one.name, type: "bar", stack: "all", data: one.values, barMaxWidth: 16,
            itemStyle: { color: color(one.tone), borderRadius: 2 },
          })),
        },
      };
    },

    columns(data, theme) {
      return {
        option: {
          legend: legend(theme, data.series),
          grid: { left: 4, right: 8, top: 14, bottom: 26, containLabel: true },
          xAxis: nameAxis(theme, data.categories, {
            name: data.x, nameLocation: "middle", nameGap: 30, nameTextStyle: { color: theme.soft },
            axisLabel: { color: theme.soft, hideOverlap: true, interval: "auto",
              formatter: (name) => (data.categories.length > 6 ? name.split("–")[0] : name) },
          }),
          yAxis: valueAxis(theme, data.unit, { splitNumber: 4 }),
          tooltip: { trigger: "axis", axisPointer: { type: "shadow" },
            formatter: (rows) => tip(`${rows[0].name} ${data.x}`, named(rows, data.unit)) },
          series: data.series.map((one) => ({
            name: one.name, type: "bar", data: one.values, barCategoryGap: "12%",
            itemStyle: { color: color(one.tone), borderRadius: [2, 2, 0, 0] },
          })),
        },
      };
    },

    lines(data, theme) {
      const top = data.series.length > 1 ? 34 : 14;
      return {
        option: {
          legend: { ...legend(theme, data.series), type: "scroll" },
          grid: { left: 4, right: 28, top, bottom: 26, containLabel: true }, // the last label is centered below the end
          xAxis: valueAxis(theme, "count", { name: data.x, nameLocation: "middle", nameGap: 28, splitLine: { show: false },
            nameTextStyle: { color: theme.soft }, min: "dataMin", max: "dataMax", axisLine: { show: true, lineStyle: { color: theme.strong } } }),
          yAxis: valueAxis(theme, "number", { scale: true, splitNumber: 4 }),
          tooltip: { trigger: "axis", formatter: (rows) => tip(`${data.x} ${rows[0].value[0].toLocaleString("en-US")}`,
            rows.map((row) => `${row.seriesName}: ${short(row.value[1], "number")}`)) },
          series: data.series.map((one) => ({
            name: one.name, type: "line", data: one.points, showSymbol: one.points.length < 30, symbolSize: 5,
            lineStyle: { width: 2, color: color(one.tone) }, itemStyle: { color: color(one.tone) },
          })),
        },
      };
    },

    memory(data, theme) {
      const share = data.peak.map((peak, at) => (data.budget[at] ? peak / data.budget[at] : 0));
      return {
        height: 64 + 30 * data.categories.length,
        option: {
          legend: legend(theme, [1, 2]),
          grid: { left: 4, right: 58, top: 30, bottom: 4, containLabel: true },
          xAxis: valueAxis(theme, "bytes", { splitNumber: theme.narrow ? 2 : 4 }),
          yAxis: nameAxis(theme, data.categories, { inverse: true,
            axisLabel: { color: theme.ink, width: 110, overflow: "truncate", interval: 0 } }),
          tooltip: { trigger: "axis", axisPointer: { type: "shadow" },
            formatter: (rows) => tip(rows[0].name, named(rows, "bytes")) },
          series: [
            { name: "budget", type: "bar", data: data.budget, barMaxWidth: 16, itemStyle: { color: color("track"), borderRadius: 2 },
              label: { show: true, position: "right", color: theme.soft,
                formatter: (bar) => `${(100 * share[bar.dataIndex]).toFixed(1)} %` } },
            { name: "peak", type: "bar", data: data.peak, barMaxWidth: 16, barGap: "-100%", z: 3,
              itemStyle: { color: color("accent"), borderRadius: 2 } },
          ],
        },
      };
    },

    flow(data, theme) {
      const labels = Object.fromEntries(data.nodes.map((node) => [node.id, node]));
      const last = Math.max(...data.nodes.map((node) => node.depth));
      const room = theme.width / last - 14, size = theme.narrow ? 11 : 12.5;
      // Labels lie beside the nodes; those of the nodes in the middle, where flows meet, lie above them.
      const label = (node) => {
        const middle = node.tone === "accent", right = node.depth === last;
        const value = short(node.value, "count"), width = room + (middle || right ? 40 : -8);
        const most = Math.floor(width / (size * 0.54)) - value.length - 1;
        const name = node.label.length > most ? `${node.label.slice(0, Math.max(4, most - 1))}…` : node.label;
        return {
          position: middle ? "top" : right ? "left" : "right", align: middle ? "center" : right ? "right" : "left",
          formatter: `{name|${name.replace(/[{}|]/g, "")}} {value|${value}}`,
          rich: { name: { color: theme.ink, fontSize: size, ...halo(node) }, value: { color: theme.soft, fontSize: size, ...halo(node) } },
        };
      };
      // A thin flow would strike through the label beside its node.
      const whole = Math.max(...data.nodes.map((node) => node.value));
      const halo = (node) => (node.value < 0.06 * whole ? { textBorderColor: theme.surface, textBorderWidth: 4 } : {});
      const tone = (link) => ({ lost: "lost", good: "good" })[labels[link.target].tone] ?? "second";
      return {
        option: {
          tooltip: { trigger: "item", formatter: (item) => item.dataType === "edge"
            ? tip(`${labels[item.data.source].label} → ${labels[item.data.target].label}`, [`${full(item.data.value, data.unit)} documents`])
            : tip(labels[item.name].label, [`${full(labels[item.name].value, data.unit)} documents`]) },
          series: [{
            type: "sankey", left: 2, right: 2, top: 28, bottom: 12, nodeWidth: 10, nodeGap: 20, layoutIterations: 32,
            draggable: false, emphasis: { focus: "adjacency" },
            data: data.nodes.map((node) => ({ name: node.id, depth: node.depth, label: label(node),
              itemStyle: { color: color(node.tone), borderWidth: 0 } })),
            links: data.links.map((link) => ({ ...link,
              lineStyle: { color: color(tone(link)), opacity: Number(color("flow")), curveness: 0.5 } })),
          }],
        },
      };
    },

    timeline(data, theme) {
      const rows = data.stages.length, upper = 30 * rows;
      const end = data.width * data.busy[0].length;
      const time = (more) => valueAxis(theme, "seconds", { min: 0, max: end, ...more }, end);
      const left = theme.narrow ? 106 : 120;
      return {
        height: upper + 196,
        option: {
          grid: [{ left, right: 20, top: 4, height: upper }, { left, right: 20, top: upper + 34, height: 116 }],
          xAxis: [time({ gridIndex: 0, axisLabel: { show: false } }), time({ gridIndex: 1, name: "time since the start",
            nameLocation: "middle", nameGap: 26, nameTextStyle: { color: theme.soft },
            axisLabel: { color: theme.soft, showMaxLabel: false, formatter: seconds } })],
          yAxis: [
            nameAxis(theme, data.stages, { gridIndex: 0, inverse: true, axisLine: { show: false },
              axisLabel: { color: theme.ink, width: left - 10, overflow: "truncate", interval: 0 },
              splitLine: { show: true, lineStyle: { color: theme.line } } }),
            valueAxis(theme, "number", { gridIndex: 1, splitNumber: 2, minInterval: 1, name: "attempts", nameLocation: "middle", nameGap: 34,
              nameTextStyle: { color: theme.soft } }),
          ],
          tooltip: { trigger: "item", formatter: (item) => item.seriesIndex === 0
            ? tip(`${data.stages[item.value[0]]} ${item.value[3]}`, [`${seconds(item.value[1])} to ${seconds(item.value[2])}`])
            : tip(data.stages[item.value[4]], [`attempts: ${short(item.value[3] - item.value[2], "number")}`]) },
          series: [
            { type: "custom", xAxisIndex: 0, yAxisIndex: 0, data: data.spans, encode: { x: [1, 2], y: 0 },
              renderItem: (params, api) => {
                const from = api.coord([api.value(1), api.value(0)]), to = api.coord([api.value(2), api.value(0)]);
                return { type: "rect", shape: { x: from[0], y: from[1] - 8, width: Math.max(2, to[0] - from[0] - 1), height: 16, r: 2 },
                  style: { fill: color(data.tones[api.value(0)]) } };
              } },
            { type: "custom", xAxisIndex: 1, yAxisIndex: 1, data: stacked(data), encode: { x: [0, 1], y: [2, 3] },
              renderItem: (params, api) => { // whole pixels, so no gaps appear between bins
                const from = api.coord([api.value(0), api.value(3)]), to = api.coord([api.value(1), api.value(2)]);
                const x = Math.round(from[0]);
                return { type: "rect", shape: { x, y: from[1], width: Math.max(1, Math.round(to[0]) - x), height: to[1] - from[1] },
                  style: { fill: color(data.tones[api.value(4)]), opacity: 0.85 } };
              } },
          ],
        },
      };
    },
  };

  const drawn = new Map();

  function draw(holder) {
    drawn.get(holder)?.dispose();
    const chart = charts[holder.dataset.chart];
    const width = holder.clientWidth;
    const theme = {
      width, narrow: width < NARROW, font: getComputedStyle(document.body).fontFamily,
      ink: color("ink"), soft: color("soft"), line: color("line"), strong: color("strong"), surface: color("surface"),
    };
    const { option, height } = DRAW[chart.kind](chart.data, theme);
    if (height) holder.style.height = `${height}px`;
    const instance = echarts.init(holder, null, { renderer: "canvas" });
    const common = base(theme);
    instance.setOption({ ...common, ...option, tooltip: { ...common.tooltip, ...option.tooltip } });
    drawn.set(holder, instance);
  }

  const drawAll = () => document.querySelectorAll("[data-chart]").forEach(draw);
  let waiting = 0;
  const again = () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(drawAll); };
  let width = window.innerWidth, zoom = window.devicePixelRatio;
  window.addEventListener("resize", () => {
    if (window.innerWidth !== width || window.devicePixelRatio !== zoom) {
      width = window.innerWidth; zoom = window.devicePixelRatio; again();
    }
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  drawAll();
  document.documentElement.dataset.drawn = String(drawn.size);
})();
