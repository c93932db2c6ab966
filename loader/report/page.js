"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const colour = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();
  const full = (n) => n.toLocaleString("en", { maximumFractionDigits: 1 });
  const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
  const span = (s) =>
    s === 0 ? "0" : s < 120 ? full(s) + " s" : s < 7200 ? full(s / 60) + " min"
    : s < 172800 ? full(s / 3600) + " h" : full(s / 86400) + " days";
  const hourly = data.step < 86400;
  const when = (at) => new Date(at * 1000).toLocaleString("en-GB", {
    timeZone: "UTC", day: "numeric", month: "short", year: "numeric",
    ...(hourly && { hour: "2-digit", minute: "2-digit" }),
  });

  // Each kind of chart: its series, as [name in the data, label, colour], bottom of the stack first.
  const kinds = {
    rows: { series: [["rows", "appended", "rows"], ["redelivered", "redelivered", "again"]], format: full },
    late: { series: [["below", "below the cursor", "late"], ["ties", "at the cursor", "ties"]], format: full },
    seconds: { series: [["seconds", "average", "rows"]], format: span, line: true },
    lag: { series: [["lag", "longest", "late"]], format: span, line: true },
  };
  const charts = [];

  function draw(figure) {
    const kind = kinds[figure.dataset.chart];
    const of = figure.dataset.of === "all" ? data.totals : data.tables[figure.dataset.of];
    const values = kind.series.map(([name]) => of[name]);
    // The top of each bar. The highest bar is drawn first, and the lower ones over it.
    const tops = values.map((_, i) => of.at.map((_, j) =>
      kind.line ? values[i][j] : values.slice(0, i + 1).reduce((sum, each) => sum + each[j], 0)));
    const readout = figure.querySelector(".readout");
    const plot = figure.querySelector(".plot");
    const describe = (j) => (j == null ? "" : when(of.at[j])) ;
    const show = (j) => {
      readout.replaceChildren();
      if (j != null) readout.append(Object.assign(document.createElement("span"), { textContent: describe(j) }));
      kind.series.forEach(([, label, tone], i) => {
        const part = document.createElement("span");
        const swatch = document.createElement("i");
        swatch.className = "swatch-" + tone;
        const sum = () => full(values[i].reduce((total, each) => total + each, 0)) + " ";
        const value = j == null ? (kind.line ? "" : sum()) : values[i][j] == null ? "no " : kind.format(values[i][j]) + " ";
        part.append(swatch, value + label);
        readout.append(part);
      });
    };
    const stroke = (tone) => () => colour(tone);
    const bars = uPlot.paths.bars({ size: [0.8, 24, 1], align: 1 });
    const axis = { stroke: stroke("soft"), font: "12px system-ui, sans-serif", ticks: { show: false }, grid: { stroke: stroke("grid"), width: 1 } };
    const options = {
      width: Math.max(plot.clientWidth, 200), height: figure.dataset.of === "all" ? 190 : 150, ms: 1e-3,
      tzDate: (at) => uPlot.tzDate(new Date(at * 1e3), "Etc/UTC"),
      legend: { show: false }, padding: [8, 18, 0, 0],
      cursor: { y: false, points: { show: false }, drag: { setScale: false, x: false } },
      scales: {
        x: { time: true, range: () => [data.since, data.until] },
        y: { range: (_, low, high) => [0, high > 0 ? high * 1.08 : 1] },
      },
      axes: [
        { ...axis, grid: { show: false }, space: 70,
          size: (_, labels) => (labels && labels.some((each) => String(each).includes("\n")) ? 42 : 26), values: [
          [31536000, "{YYYY}", null, null, null, null, null, null, 1],
          [2419200, "{MMM}", "\n{YYYY}", null, null, null, null, null, 1],
          [86400, "{D} {MMM}", null, null, null, null, null, null, 1],
          [3600, "{HH}:00", "\n{D} {MMM}", null, "\n{D} {MMM}", null, null, null, 1],
        ] },
        { ...axis, size: 56, space: 34, values: (_, ticks) => ticks.map((v) =>
          kind.line ? span(v) : v % 1 ? "" : short.format(v)) },
      ],
      series: [{}, ...kind.series.map(([, label, tone], i) => ({
        label, stroke: stroke(tone), spanGaps: true,
        ...(kind.line ? { width: 1.75, points: { show: of.at.length < 3 } } : { width: 0, fill: stroke(tone), paths: bars, points: { show: false } }),
      })).reverse()],
      hooks: { setCursor: [(u) => show(u.cursor.idx)] },
    };
    const chart = new uPlot(options, [of.at, ...tops.reverse()], plot);
    show(null);
    const title = figure.querySelector("figcaption").textContent;
    plot.tabIndex = 0;
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", `${title}. ${readout.textContent}. The arrow keys read single values.`);
    plot.addEventListener("keydown", (event) => {
      const last = of.at.length - 1, current = chart.cursor.idx;
      const steps = { ArrowRight: current == null ? 0 : current + 1, ArrowLeft: current == null ? last : current - 1, Home: 0, End: last };
      if (event.key === "Escape") chart.setCursor({ left: -10, top: -10 });
      if (!(event.key in steps) || last < 0) return;
      event.preventDefault();
      const j = Math.min(Math.max(steps[event.key], 0), last);
      chart.setCursor({ left: chart.valToPos(of.at[j], "x"), top: 10 });
      show(j);
      chart.cursor.idx = j;
    });
    figure.querySelector(".numbers").addEventListener("toggle", (event) => {
      const box = event.target.querySelector(".scroll");
      if (box.firstChild) return;
      const table = document.createElement("table");
      table.className = "plain";
      const head = table.createTHead().insertRow();
      for (const text of [hourly ? "Hour" : "Day", ...kind.series.map((each) => each[1])]) {
        head.append(Object.assign(document.createElement("th"), { textContent: text, scope: "col" }));
      }
      const body = table.createTBody();
      for (let j = of.at.length - 1; j >= 0; j--) {
        const row = body.insertRow();
        row.insertCell().textContent = when(of.at[j]);
        for (const each of values) row.insertCell().textContent = each[j] == null ? "–" : kind.format(each[j]);
      }
      box.append(table);
    });
    charts.push({ chart, plot });
  }

  // Draws a chart when it becomes visible, because a page may have hundreds.
  function drawVisible(within) {
    for (const figure of within.querySelectorAll(".chart:not([data-drawn])")) {
      if (figure.closest("details:not([open])")) continue;
      figure.dataset.drawn = "";
      draw(figure);
    }
  }
  const resize = (width) => charts.forEach(({ chart, plot }) =>
    chart.setSize({ width: width || Math.max(plot.clientWidth, 200), height: chart.height }));
  const redraw = () => charts.forEach(({ chart }) => chart.redraw(false, true));

  drawVisible(document);
  for (const details of document.querySelectorAll("details.table")) {
    details.addEventListener("toggle", () => details.open && drawVisible(details));
  }
  let pending;
  addEventListener("resize", () => { clearTimeout(pending); pending = setTimeout(resize, 100); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("beforeprint", () => { root.dataset.theme = "light"; resize(310); redraw(); });
  addEventListener("afterprint", () => { delete root.dataset.theme; resize(); redraw(); });

  // A link to a table opens its section.
  const reveal = () => {
    const target = /^#\w+$/.test(location.hash) && document.querySelector(location.hash);
    const details = target && target.closest("details");
    if (details) { details.open = true; drawVisible(details); target.scrollIntoView(); }
  };
  addEventListener("hashchange", reveal);
  reveal();

  // The page may be read long after it was written.
  const written = Date.parse(document.getElementById("written").dateTime);
  const ago = (time) => {
    const seconds = Math.max(0, (Date.now() - time) / 1000);
    const [unit, size] = [["day", 86400], ["hour", 3600], ["minute", 60]].find((each) => seconds >= 2 * each[1])
      || ["second", 1];
    return `${Math.round(seconds / size)} ${unit}s ago`;
  };
  const updateAges = () => {
    document.getElementById("age").textContent = ` · written ${ago(written)}`;
    document.querySelector(".when").classList.toggle("old", Date.now() - written > 26 * 3600000);
    if (Date.now() < written) return; // this machine's clock is behind
    for (const each of document.querySelectorAll("time[title]")) each.textContent = ago(Date.parse(each.dateTime));
  };
  updateAges();
  setInterval(updateAges, 30000);

  if (data.refresh) {
    const opened = sessionStorage.getItem("opened");
    if (opened) {
      for (const details of document.querySelectorAll("details.table")) {
        details.open = opened.split(" ").includes(details.dataset.table) || details.open;
      }
    }
    setTimeout(() => {
      const open = [...document.querySelectorAll("details.table[open]")];
      sessionStorage.setItem("opened", open.map((each) => each.dataset.table).join(" "));
      location.reload();
    }, data.refresh * 1000);
  }
})();
