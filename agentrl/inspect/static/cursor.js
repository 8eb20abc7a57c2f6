// The cursor that the charts of a page share: a step, or null while nobody points at one.

const cursor = new EventTarget();

export function pointAt(step) {
  cursor.dispatchEvent(new CustomEvent("move", { detail: step }));
}

// Follows the cursor as long as the node is on the page.
export function follow(node, onMove) {
  const listener = (event) =>
    node.isConnected ? onMove(event.detail) : cursor.removeEventListener("move", listener);
  cursor.addEventListener("move", listener);
}
