"""W2 by tf.data's service on loopback: python tfdata_service.py FOLDER WORKERS

A dispatcher, WORKERS workers in processes of their own, and a consumer here. JPEGs of a folder of folders, decoded, a random part
resized to 224, flip, float32 CHW normalised, batches of 64. Prints the seconds for each picture once, without start-up.
"""
import glob
import multiprocessing
import sys
import time

folder, workers = sys.argv[1], int(sys.argv[2])


def work(address):
    import tensorflow as tf
    config = tf.data.experimental.service.WorkerConfig(dispatcher_address=address)
    tf.data.experimental.service.WorkerServer(config).join()


def graph(tf, address):
    paths = sorted(glob.glob(folder + "/*/*.jpg"))
    mean, std = (tf.constant(v, shape=(3, 1, 1)) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))

    def one(path):
        file = tf.io.read_file(path)
        box, size, _ = tf.image.sample_distorted_bounding_box(
            tf.image.extract_jpeg_shape(file), tf.zeros((1, 0, 4)), area_range=(0.08, 1.0), aspect_ratio_range=(0.75, 1.333),
            use_image_if_no_bounding_boxes=True)
        (y, x, _), (h, w, _) = tf.unstack(box), tf.unstack(size)
        image = tf.image.decode_and_crop_jpeg(file, tf.stack([y, x, h, w]), channels=3)
        image = tf.image.random_flip_left_right(tf.image.resize(image, (224, 224), antialias=True))
        return (tf.transpose(image, (2, 0, 1)) / 255 - mean) / std

    data = tf.data.Dataset.from_tensor_slices(paths).map(one, num_parallel_calls=1).batch(64)
    service = tf.data.experimental.service
    return data.apply(service.distribute(service.ShardingPolicy.DYNAMIC, f"grpc://{address}")), len(paths)


if __name__ == "__main__":
    import tensorflow as tf
    dispatcher = tf.data.experimental.service.DispatchServer()
    address = dispatcher.target.split("://")[1]
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=work, args=(address,), daemon=True) for _ in range(workers)]
    for process in processes:
        process.start()
    data, count = graph(tf, address)
    # The first epoch starts everything.
    for _ in range(2):
        begun = time.perf_counter()
        seen = sum(int(batch.shape[0]) for batch in data)
        seconds = time.perf_counter() - begun
        assert seen == count, f"{seen} of {count} pictures"
    for process in processes:
        process.terminate()
    print(seconds)
