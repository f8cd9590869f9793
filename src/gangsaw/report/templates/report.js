(function () {
  "use strict";
  var root = document.documentElement;
  function themed(text) {
    var style = getComputedStyle(root);
    return text.replace(/var\((--[\w-]+),\s*([^()]*(?:\([^()]*\))?[^()]*)\)/g, function (_, name, fallback) {
      return style.getPropertyValue(name).trim() || fallback;
    });
  }
  function save(name, type, text) {
    var link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: type }));
    link.download = name;
    link.click();
    setTimeout(function () { URL.revokeObjectURL(link.href); }, 1000);
  }
  function csv(table) {
    return Array.prototype.map.call(table.rows, function (row) {
      return Array.prototype.map.call(row.cells, function (cell) {
        var value = cell.hasAttribute("data-v") ? cell.getAttribute("data-v") : cell.textContent.trim();
        return /[",\n]/.test(value) ? '"' + value.replace(/"/g, '""') + '"' : value;
      }).join(",");
    }).join("\n") + "\n";
  }
  function button(where, label, run) {
    var b = document.createElement("button");
    b.type = "button";
    b.textContent = label;
    b.addEventListener("click", run);
    where.appendChild(b);
    return b;
  }
  document.querySelectorAll("[data-name]").forEach(function (figure) {
    var tools = document.createElement("div");
    tools.className = "tools";
    var name = figure.getAttribute("data-name");
    var picture = figure.querySelector(".wide svg, template svg, .chart > svg");
    var held = figure.querySelector("template");
    if (held) { picture = held.content.querySelector("svg"); }
    var table = figure.querySelector("table.data");
    if (picture) {
      button(tools, name === "picture" ? "Picture (SVG)" : "SVG", function () {
        var copy = picture.cloneNode(true);
        copy.style.background = getComputedStyle(root).getPropertyValue("--surface").trim();
        save(name + ".svg", "image/svg+xml", themed(copy.outerHTML));
      }).setAttribute("aria-label", "Download " + name + " as SVG");
    }
    if (table) {
      button(tools, "CSV", function () { save(name + ".csv", "text/csv", csv(table)); })
        .setAttribute("aria-label", "Download " + name + " as CSV");
    }
    var long = figure.querySelector(".chart.long");
    if (long) {
      var zoom = 1;
      var scale = function (factor) {
        var middle = (long.scrollLeft + long.clientWidth / 2) / long.scrollWidth;
        zoom = Math.min(16, Math.max(1, zoom * factor));
        picture.style.width = 100 * zoom + "%";
        long.scrollLeft = middle * long.scrollWidth - long.clientWidth / 2;
      };
      button(tools, "Zoom in", function () { scale(2); });
      button(tools, "Zoom out", function () { scale(0.5); });
    }
    if (tools.children.length) { figure.appendChild(tools); }
  });
  var place = document.getElementById("theme");
  if (place) {
    var toggle = button(place, "", function () {
      var dark = root.getAttribute("data-theme") === "dark" ||
        (!root.hasAttribute("data-theme") && matchMedia("(prefers-color-scheme: dark)").matches);
      root.setAttribute("data-theme", dark ? "light" : "dark");
      name();
    });
    var name = function () {
      var dark = root.getAttribute("data-theme") === "dark" ||
        (!root.hasAttribute("data-theme") && matchMedia("(prefers-color-scheme: dark)").matches);
      toggle.textContent = dark ? "Light" : "Dark";
    };
    name();
  }
})();
