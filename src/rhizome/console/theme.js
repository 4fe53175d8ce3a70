// Before anything is painted: the theme that was chosen here last, if any.
{
  let chosen = null;
  try {
    chosen = localStorage.getItem("rhizome.theme");
  } catch {
    // Storage may be forbidden; then the system's theme it is.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
