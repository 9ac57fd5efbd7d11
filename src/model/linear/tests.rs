//! One product, however the weight is kept.

use candle_core::Var;

use super::*;

fn matrix(rows: usize, width: usize) -> Tensor {
    let values: Vec<f32> = (0..rows * width).map(|i| ((i * 7919) % 509) as f32 / 254.0 - 1.0).collect();
    Tensor::from_vec(values, (rows, width), &Device::Cpu).expect("a matrix")
}

/// Largest difference over the largest value.
fn relative(a: &Tensor, b: &Tensor) -> f32 {
    let largest = |x: &Tensor| x.abs().and_then(|x| x.flatten_all()?.max(0)?.to_scalar::<f32>()).expect("a number");
    largest(&(a - b).expect("equal shapes")) / largest(b)
}

#[test]
fn sixteen_bits_in_memory_give_the_product_of_what_they_hold() {
    // More rows than a block has.
    let (rows, width) = (2 * (BLOCK_NUMBERS / 640) + 5, 640);
    let (x, weight) = (matrix(3, width), matrix(rows, width));
    let bias = matrix(1, rows).squeeze(0).expect("a row");
    for dtype in [DType::BF16, DType::F16] {
        let narrow = weight.to_dtype(dtype).expect("narrow");
        let exact = Linear::new(narrow.to_dtype(DType::F32).expect("wide"), Some(bias.clone()));
        let layer = Linear::new(narrow, Some(bias.clone()));
        assert_eq!(layer.bytes(), rows * width * 2);
        let (got, expected) = (layer.forward(&x).expect("product"), exact.forward(&x).expect("product"));
        assert!(relative(&got, &expected) < 1e-6);
    }
}

#[test]
fn panels_add_their_bias_and_refuse_another_layers() {
    let (x, weight) = (matrix(3, 24), matrix(40, 24));
    let bias = |length| matrix(1, length).squeeze(0).expect("a row");
    let layer = |bias| Linear::for_inference(weight.clone(), Some(bias)).expect("a layer");
    let expected = Linear::new(weight.clone(), Some(bias(40))).forward(&x).expect("product");
    assert!(relative(&layer(bias(40)).forward(&x).expect("product"), &expected) < 1e-6);
    assert!(layer(bias(39)).forward(&x).is_err() && layer(bias(1)).forward(&x).is_err());
}

#[test]
fn quantized_products_are_close_and_rows_that_do_not_divide_are_told() {
    let x = matrix(3, 512);
    let weight = matrix(40, 512);
    let exact = Linear::new(weight.clone(), None).forward(&x).expect("product");
    for (quantization, most, bytes) in
        [(Quantization::Q8_0, 0.01, 40 * 512 * 34 / 32), (Quantization::Q4K, 0.1, 40 * 2 * 144)]
    {
        let layer = Linear::quantized(&weight, None, quantization, &Device::Cpu).expect("quantizes").expect("divides");
        assert_eq!(layer.bytes(), bytes);
        let distance = relative(&layer.forward(&x).expect("product"), &exact);
        assert!(distance < most, "{quantization:?}: {distance}");
    }
    for (quantization, width, kept) in [
        (Quantization::Q8_0, 96, Some(GgmlDType::Q8_0)),
        (Quantization::Q8_0, 80, None),
        (Quantization::Q4K, 96, Some(GgmlDType::Q8_0)),
        (Quantization::Q4K, 256, Some(GgmlDType::Q4K)),
        (Quantization::Q4K, 80, None),
    ] {
        assert_eq!(quantization.for_width(width), kept);
    }
    assert!(Linear::quantized(&matrix(4, 80), None, Quantization::Q4K, &Device::Cpu).expect("tells").is_none());
}

#[test]
fn several_layers_in_one_product_are_what_they_are_alone() {
    let x = matrix(4, 16);
    let weight = matrix(10, 16);
    let part = |start, rows| Linear::new(weight.narrow(0, start, rows).expect("rows"), None);
    let apart = Fused::Apart(vec![part(0, 5), part(5, 3), part(8, 2)]);
    let together = Fused::Together(Linear::new(weight.clone(), None), vec![5, 3, 2]);
    let (apart, together) = (apart.forward(&x).expect("products"), together.forward(&x).expect("products"));
    assert_eq!(apart.len(), together.len());
    for (a, b) in apart.iter().zip(&together) {
        assert_eq!(a.dims(), b.dims());
        assert!(relative(b, a) < 1e-6);
    }
}

#[test]
fn gradients_reach_a_weight_of_sixteen_bits() {
    let weight = Var::from_tensor(&matrix(6, 8).to_dtype(DType::BF16).expect("narrow")).expect("a variable");
    let y = Linear::new(weight.as_tensor().clone(), None).forward(&matrix(2, 8)).expect("product");
    let gradients = y.sqr().and_then(|y| y.sum_all()?.backward()).expect("gradients");
    assert!(gradients.get(&weight).is_some());
}
