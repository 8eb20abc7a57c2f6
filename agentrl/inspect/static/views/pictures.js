// Texts with the images that the model was shown in them, each in the place of its label.

import { imageAddress } from "../api.js";
import { h, longText } from "../dom.js";
import { plural } from "../format.js";

// Images of a row whose first token is in a part of it, counted over prompt and response.
export function imagesIn(row, from, to) {
  return row.images.filter(({ start }) => start >= from && start < to);
}

// A function that makes nodes of the texts of a turn, in order. Labels are looked for in order, so
// that a text that holds such words of its own moves no image out of its turn; images without a
// label stand behind the `last` text.
export function textWithImages(run, images) {
  const left = [...images];
  return (text, { last = true, show = longText } = {}) => {
    const nodes = [];
    let rest = text ?? "";
    while (left.length) {
      const label = labelOf(left[0]).exec(rest);
      if (!label && !last) break;
      if (label?.index) nodes.push(show(rest.slice(0, label.index)));
      if (label) rest = rest.slice(label.index + label[0].length);
      nodes.push(picture(run, left.shift(), label?.[1] ?? label?.[2]));
    }
    if (rest) nodes.push(show(rest));
    return nodes;
  };
}

// As stored, or numbered for views without pictures.
function labelOf({ digest, number }) {
  const stored = `(?:(\\d+x\\d+) )?${digest.slice(0, 8)}`;
  return new RegExp(`\\[image (?:${stored}|${number}: (?:(\\d+x\\d+), )?\\d+ tokens)\\]`);
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
