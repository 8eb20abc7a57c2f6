// Texts with the images that the model was shown in them, each in the place of its label.

import { imageAddress } from "../api.js";
import { h, longText } from "../dom.js";
import { plural } from "../format.js";

// Images of a row whose first token is in a part of it, counted over prompt and response.
export function imagesIn(row, from, to) {
  return row.images.filter(({ start }) => start >= from && start < to);
}

// A text as nodes. Labels are looked for in order, so that a text that holds such words of its own
// moves no image out of its turn; an image without a label stands behind the text.
export function shownText(run, text, images) {
  if (!images.length) return longText(text);
  const nodes = [];
  let rest = text ?? "";
  for (const image of images) {
    const label = new RegExp(`\\[image (?:(\\d+x\\d+) )?${image.digest.slice(0, 8)}\\]`).exec(rest);
    if (label) {
      if (label.index) nodes.push(longText(rest.slice(0, label.index)));
      rest = rest.slice(label.index + label[0].length);
    }
    nodes.push(picture(run, image, label?.[1]));
  }
  if (rest) nodes.push(longText(rest));
  return nodes;
}

// `size` is that of the picture, as its label in the text says it.
function picture(run, image, size) {
  const source = image.kept && imageAddress(run, image.digest);
  const facts = [size, plural(image.tokens, "token"), plural(image.features, "feature")];
  const name = `image ${image.number}`;
  return h(
    "figure",
    { class: "picture", title: `${image.digest} at token ${image.start}` },
    source
      ? h("img", { src: source, alt: name, loading: "lazy", decoding: "async" })
      : h("p", { class: "note" }, "its file is not in the run"),
    h("figcaption", { class: "note" }, `${name}: ${facts.filter(Boolean).join(", ")}`),
  );
}
