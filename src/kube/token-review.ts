// Asks the API server whether a bearer token may GET a path, as kube-rbac-proxy does: a TokenReview, then a
// SubjectAccessReview of a non-resource URL. Only tokens made for it open the data of the status page: one that also opens
// the API server need not travel there.
import type { V1SubjectAccessReview, V1TokenReview } from '@kubernetes/client-node';
import { STATUS_AUDIENCE, STATUS_PATHS } from '../api/names.ts';
import { describeApiError } from './api-error.ts';
import { callApi } from './call.ts';
import type { ApiConfig } from './config.ts';

export type Reviewed = 'allowed' | 'unauthenticated' | 'forbidden';
/** Rejects when the API server cannot be reached. */
export type ReviewCall = (token: string, path: string) => Promise<Reviewed>;

/** For each of the two calls: together they take less than a scrape may. */
const WITHIN_MS = 2000;
const TOKEN_REVIEWS = '/apis/authentication.k8s.io/v1/tokenreviews';
const ACCESS_REVIEWS = '/apis/authorization.k8s.io/v1/subjectaccessreviews';

export function createTokenReviewer(config: ApiConfig, withinMs = WITHIN_MS): ReviewCall {
  const create = <T>(path: string, body: Partial<T>): Promise<T> =>
    callApi<T>(config, { method: 'POST', path, body, withinMs });
  return async (token, path) => {
    try {
      const audiences = (STATUS_PATHS as readonly string[]).includes(path) ? [STATUS_AUDIENCE] : undefined;
      const spec = { token, ...(audiences && { audiences }) };
      const { status: review } = await create<V1TokenReview>(TOKEN_REVIEWS, { spec });
      const { username, uid, groups, extra } = review?.user ?? {};
      if (review?.authenticated !== true || username === undefined) return 'unauthenticated';
      // An authenticator that knows no audiences names none: its token is one for the API server.
      if (audiences && !review.audiences?.includes(STATUS_AUDIENCE)) return 'unauthenticated';
      const { status: access } = await create<V1SubjectAccessReview>(ACCESS_REVIEWS, {
        spec: {
          user: username,
          ...(uid !== undefined && { uid }),
          ...(groups !== undefined && { groups }),
          ...(extra !== undefined && { extra }),
          nonResourceAttributes: { path, verb: 'get' },
        },
      });
      return access?.allowed === true && access.denied !== true ? 'allowed' : 'forbidden';
    } catch (error) {
      throw new Error(describeApiError(error));
    }
  };
}
