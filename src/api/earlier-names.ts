// Earlier names of annotations and keys. Pods that an earlier version admitted or bound, containers that it created,
// and Nodes with an earlier agent still have them: Cotenant reads them and never writes them.
import { isObject } from '../common/json.ts';
import { GIVEN_ANNOTATION, GPUS_ANNOTATION } from './names.ts';

/** Earlier name of the key `gpus` in the request and the grant annotation. */
export const CARDS_KEY = 'cards';
const NODE_CARDS_ANNOTATION = 'cotenant.io/cards';
const GIVEN_CARDS_ANNOTATION = 'cotenant.io/cards-given';

/** A container of the request or grant annotation with its GPUs under today's key. */
export function acceptCardsKey(container: unknown): unknown {
  if (!isObject(container) || !(CARDS_KEY in container) || 'gpus' in container) return container;
  const { [CARDS_KEY]: gpus, ...rest } = container;
  return { ...rest, gpus };
}

/** The value of the Node annotation with its keys as they are called today. */
export function acceptNodeCards(value: unknown): unknown {
  if (!isObject(value) || !(CARDS_KEY in value)) return value;
  return { ...value, mostTenantsPerGpu: value.mostTenantsPerCard, gpus: value[CARDS_KEY] };
}

type Annotations = Readonly<Record<string, string>>;

/** The text of the annotation with a Node's GPUs. */
export const nodeGpusText = (annotations: Annotations = {}): string | undefined =>
  annotations[GPUS_ANNOTATION] ?? annotations[NODE_CARDS_ANNOTATION];

/** True where the agent gave this container GPUs when it was made. */
export const wasGivenGpus = (annotations: Annotations): boolean =>
  GIVEN_ANNOTATION in annotations || GIVEN_CARDS_ANNOTATION in annotations;
