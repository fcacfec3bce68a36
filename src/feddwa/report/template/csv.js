// The numbers behind a chart as a CSV file: a button under every chart.

function offer(id) {
  const { table } = drawn.get(id), chart = $(id);
  if (!table || chart.nextElementSibling?.className === "csv") return;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "csv";
  button.textContent = "CSV";
  button.title = "Download the numbers of this chart";
  button.setAttribute("aria-label", `Download as CSV: ${chart.getAttribute("aria-label")}`);
  button.addEventListener("click", () => save(`${id.replace("-chart", "")}.csv`, drawn.get(id).table()));
  chart.after(button);
}

function save(name, rows) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n"], { type: "text/csv" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

// Quoted where it has to be; a name that begins like a formula is not to be one in a spreadsheet.
function cell(value) {
  if (value === null || value === undefined) return "";
  const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
