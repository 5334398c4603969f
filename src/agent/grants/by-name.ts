// Which grant a person means: by its id, or by a name that one grant of this node has. The registry is asked, not a
// sample: a grant is known from the moment it is made. Pure.
import { err, ok, type Result } from '../../common/result.ts';
import type { Grant } from './grant.ts';

type Named = Pick<Grant, 'id' | 'namespace' | 'pod'>;

export type NotFound = {
  readonly reason: 'unknown-grant' | 'ambiguous-name';
  readonly error: string;
  /** Of the grants that have the name. */
  readonly ids: readonly string[];
};

/** `name`: an id, a pod (of `cotenant run` the tenant's name), or `NAMESPACE/POD`. An id comes first. */
export function grantNamed(grants: readonly Named[], name: string): Result<string, NotFound> {
  if (grants.some(({ id }) => id === name)) return ok(name);
  const ids = grants.flatMap(({ id, namespace, pod }) => ([pod, `${namespace}/${pod}`].includes(name) ? [id] : []));
  const [id] = ids;
  if (id === undefined) return err({ reason: 'unknown-grant', error: `no grant ${name} on this node`, ids });
  if (ids.length === 1) return ok(id);
  const error = `${ids.length} grants are named ${name}; use one of the ids ${ids.join(', ')}`;
  return err({ reason: 'ambiguous-name', error, ids });
}
