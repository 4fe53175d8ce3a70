// Numbers, sizes and times as people read them.

export function count(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return trimmed(value / 1e9) + " G";
  if (size >= 1e6) return trimmed(value / 1e6) + " M";
  if (size >= 1e4) return trimmed(value / 1e3) + " k";
  return Number.isInteger(value) ? String(value) : trimmed(value);
}

export function rate(value) {
  if (value === null || value === undefined) return "–";
  return `${count(value >= 100 ? Math.round(value) : Math.round(value * 10) / 10)}/s`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (Math.abs(value) >= 1024 && at < units.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${trimmed(value)} ${units[at]}`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  const seconds = Math.max(0, Math.floor(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

export function clock(ms) {
  return new Date(ms).toLocaleTimeString();
}

export function moment(ms) {
  return new Date(ms).toLocaleString();
}

export function plural(number, word, words = `${word}s`) {
  return `${count(number)} ${number === 1 ? word : words}`;
}

// Control characters would be invisible, and hide what a name really is. Applications also send lists and
// tables where a text belongs, and of some of them JavaScript can make no text by itself.
export function visible(name) {
  const text = typeof name === "object" && name !== null ? JSON.stringify(name) : String(name);
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g, (sign) =>
    `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

function trimmed(value) {
  const size = Math.abs(value);
  return String(Number(value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2)));
}
