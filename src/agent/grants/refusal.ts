// Why something about a grant is refused, in a sentence for the person who asked.

/** `later`: the same request may succeed in a moment. */
export type Refusal = { readonly refused: string; readonly later?: boolean };
